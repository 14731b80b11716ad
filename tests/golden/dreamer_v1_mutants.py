"""Mutants of Dreamer V1: one change of one named function each, with the check that detects it."""

from __future__ import annotations

from tests.golden.dreamer_mutants import of_all
from tests.golden.mutants import Mutant, returned, swap

DISCRETE, PICTURES = ("check_losses", "discrete"), ("check_losses", "multi_discrete")
CONTINUOUS, ENDS = ("check_losses", "continuous"), ("check_losses", "ends")
CLAMPED, NORMAL = ("check_losses", "clamped"), ("check_losses", "normal")

MODEL, ACTOR = "dreamer_v1.Learner.model_loss", "dreamer_v1.Behavior.actor_objective"
REWARD = "dreamer_v1.Behavior.predicted_reward"
CRITIC = "DreamerBehavior.critic_objective"
OF = "GaussianLatent.of"
MUTANTS = (
    *of_all(MODEL, DISCRETE, PICTURES),
    # KL divergence.
    Mutant("KL sides swapped", MODEL, swap("normal_kl(posterior, prior)", "normal_kl(prior, posterior)"), DISCRETE),
    Mutant("no free nats", "mean_free_nats", returned("kl"), CLAMPED),
    Mutant("clamp of each row in place of the mean", "mean_free_nats", returned("kl.clamp(min=nats)"), DISCRETE),
    Mutant("clamp of each latent", "normal_kl", swap("0.5 * A.sum(-1)", "(0.5 * A).clamp(0.1).sum(-1)"), DISCRETE),
    Mutant("free nats of the wrong sign", "mean_free_nats", swap("mean > nats", "mean < nats"), CLAMPED),
    Mutant("kl_regularizer dropped", MODEL, swap("config.kl_regularizer * kl", "kl"), PICTURES),
    Mutant("entropy of one latent", "normal_entropy", swap("A.sum(-1)", "A.mean(-1)"), DISCRETE),
    # State.
    Mutant("std of an exponential", OF, swap("F.softplus(A)", "A.exp()"), DISCRETE),
    Mutant("no lowest std", OF, swap("A + self.min_std", "A"), CONTINUOUS),
    Mutant(
        "no gradient to the std",
        "GaussianLatent.sample",
        swap("distribution.std", "distribution.std.detach()"),
        DISCRETE,
    ),
    Mutant(
        "gates of a cell exchanged", "PlainGRU.forward", swap("torch.lerp(A, B, C)", "torch.lerp(B, A, C)"), DISCRETE
    ),
    Mutant("no reset gate", "PlainGRU.forward", swap("reset * kept[2]", "kept[2]"), DISCRETE),
    # Predictions from the state, and their time step.
    Mutant("vectors in symlog space", "KeyEncoder.preprocess", swap("self.symlog", "True"), DISCRETE),
    Mutant("squares without their half", "unit_normal_loss", swap("0.5 * A", "A"), PICTURES),
    Mutant("γ left out of what ends learn", MODEL, swap("self.config.gamma * A", "A"), PICTURES),
    Mutant("continue_scale_factor dropped", MODEL, swap("config.continue_scale_factor * A", "A"), ENDS),
    # λ-returns and their weights.
    Mutant("imagination from the last row, not the first", ACTOR, swap("part[:-1]", "part[1:]"), ENDS),
    Mutant(
        "returns of the states that imagination begins with",
        ACTOR,
        swap("Imagined(feat[1:], action[1:])", "Imagined(feat[:-1], action[:-1])"),
        DISCRETE,
    ),
    Mutant(
        "reward of the state stepped to",
        REWARD,
        swap("imagined.feat[:-1]", "imagined.feat[1:]"),
        DISCRETE,
    ),
    Mutant("value of the state that is left", ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    Mutant("discount one step off", ACTOR, swap("A.predict_continue(feat[:-1])", "A.predict_continue(feat[1:])"), ENDS),
    Mutant("γ twice", ACTOR, swap("A.sigmoid()", "config.gamma * A.sigmoid()"), ENDS),
    Mutant("discount without a gradient", ACTOR, swap("A.sigmoid()", "A.sigmoid().detach()"), ENDS),
    Mutant("weights one step off", ACTOR, swap("torch.cat([A, discount[:-1]])", "discount"), DISCRETE),
    Mutant("weights with a gradient", ACTOR, swap("A.detach().cumprod(0)", "A.cumprod(0)"), ENDS),
    # Actor and critic.
    Mutant("actor's input not detached", "imagine", swap("state.feat.detach()", "state.feat"), CONTINUOUS),
    Mutant("no gradient through discrete actions", "LatentActor.forward", swap("taken + A", "taken"), DISCRETE),
    Mutant("actor without weights", "dreamer_v1.actor_loss", swap("-weight * returns", "-returns"), DISCRETE),
    Mutant("actor's returns of the wrong sign", "dreamer_v1.actor_loss", returned("-it"), DISCRETE),
    Mutant("critic without weights", CRITIC, swap("weight * A", "A"), DISCRETE),
    Mutant("targets of the critic not detached", ACTOR, swap("returns.detach()", "returns"), DISCRETE),
    Mutant("std of actions without its offset", "squashed_normal", swap("spread + A", "spread"), ENDS),
    Mutant(
        "init_std added before the softplus",
        "dreamer_v1.ActorConfig.policy",
        swap('kind == "tanh_normal"', "False"),
        ENDS,
    ),
    Mutant("mean not held within five", "squashed_normal", swap("5 * torch.tanh(mean / 5)", "mean"), CONTINUOUS),
    Mutant("lowest std of actions dropped", "squashed_normal", swap("A + form.min_std", "A"), CLAMPED),
    Mutant(
        "as much noise as at the start", "DreamerLearner.update", swap("batch.policy_steps", "0"), ("check_update",)
    ),
    Mutant("std of a normal as it is", "plain_normal", swap("F.softplus(A)", "A.exp()"), NORMAL),
)
