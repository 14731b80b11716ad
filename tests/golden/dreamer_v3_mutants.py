"""Mutants of Dreamer V3: one change of one named function each, with the check that detects it."""

from __future__ import annotations

from tests.golden.dreamer_mutants import of_all
from tests.golden.mutants import Mutant, given, returned, swap

DISCRETE, MIXED = ("check_losses", "multi_discrete"), ("check_losses", "mixed")
MIXED_NORMAL = ("check_losses", "continuous_mixed")
CONTINUOUS, DECOUPLED = ("check_losses", "continuous"), ("check_losses", "decoupled")

MODEL = "dreamer_v3.Learner.model_loss"
ACTOR, CRITIC, REWARD = (
    f"dreamer_v3.Behavior.{name}" for name in ("actor_objective", "critic_objective", "predicted_reward")
)
KL = "dreamer_v3.kl_loss"
MUTANTS = (
    *of_all(MODEL, DISCRETE, DISCRETE),
    # KL divergence.
    Mutant("KL sides swapped", KL, given(dynamic="representation", representation="dynamic"), DISCRETE),
    Mutant("KL from prior to posterior", "categorical_kl", swap("p.exp() * A", "q.exp() * A"), DISCRETE),
    Mutant("gradient of the prior's KL reaches the posterior", KL, swap("posterior.detach()", "posterior"), DISCRETE),
    Mutant("gradient of the posterior's KL reaches the prior", KL, swap("prior.detach()", "prior"), DISCRETE),
    Mutant(
        "clamp of each latent",
        KL,
        swap(
            "categorical_kl(posterior.detach(), prior)",
            "(posterior.exp() * (posterior - prior)).sum(-1).clamp(nats).sum(-1)",
        ),
        DISCRETE,
    ),
    Mutant("no free nats", "free_nats", returned("kl"), DISCRETE),
    Mutant("entropy of one latent", "categorical_entropy", swap("A.sum((-2, -1))", "A.sum(-1).mean(-1)"), DISCRETE),
    # State.
    Mutant("initial h without its tanh", "RSSM.initial", swap("A.tanh()", "A"), DISCRETE),
    Mutant("update gate without its bias", "LayerNormGRU.forward", swap("update - 1", "update"), DISCRETE),
    Mutant("unimix of logits", "unimix", swap("F.log_softmax(A, -1)", "F.log_softmax((1 - share) * A, -1)"), DISCRETE),
    Mutant("no unimix", "unimix", given(share="0.0"), CONTINUOUS),
    Mutant("no gradient through samples", "sample_one_hot", swap("A + (p - p.detach())", "A"), DISCRETE),
    # Predictions from the state, and their time step.
    Mutant(
        "no start at the first row", "open_at_first_row", swap("torch.ones_like(A)", "torch.zeros_like(A)"), CONTINUOUS
    ),
    Mutant("vectors without symlog", "KeyEncoder.preprocess", swap("symlog(vector)", "vector"), DISCRETE),
    Mutant("other grid", "TwoHot.grid", swap('A == "symexp"', "True"), DISCRETE),
    Mutant("reward without symlog", "TwoHot.loss", swap('A == "symlog"', "False"), DISCRETE),
    Mutant("weights of the two bins exchanged", "TwoHot.loss", swap("x - low", "high - x"), DISCRETE),
    Mutant("continue_scale_factor dropped", MODEL, swap("config.continue_scale_factor * A", "A"), MIXED),
    # Returns and their weights.
    Mutant(
        "reward of the state that is left",
        REWARD,
        swap("imagined.feat[1:]", "imagined.feat[:-1]"),
        DISCRETE,
    ),
    Mutant("value of the state that is left", ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    Mutant("discount one step off", ACTOR, swap("continues[:-1]", "continues[1:]"), DISCRETE),
    Mutant(
        "weights one step off", ACTOR, swap("torch.cat([A, config.gamma * B])", "config.gamma * continues"), DISCRETE
    ),
    Mutant("no weight where an episode ended", ACTOR, swap("~terminated", "terminated"), DISCRETE),
    Mutant("γ left out of the weights", ACTOR, swap("config.gamma * A[:-1].detach()", "A[:-1]"), DISCRETE),
    Mutant(
        "chance of going on in place of the likelier",
        "imagine_continue",
        swap("(A > 0).float()", "A.sigmoid()"),
        DISCRETE,
    ),
    # Actor and critic.
    Mutant("no percentile floor", "ReturnScale.forward", swap("A.clamp(min=B)", "A"), DECOUPLED),
    Mutant("percentiles not followed", "ReturnScale.forward", swap("1 - config.decay", "0.0"), DISCRETE),
    Mutant("no baseline", ACTOR, swap("returns - value[:-1]", "returns"), DISCRETE),
    Mutant(
        "actor's input not detached", ACTOR, swap("A.policy(feat[:-1].detach())", "A.policy(feat[:-1])"), CONTINUOUS
    ),
    Mutant("targets of the critic not detached", ACTOR, swap("returns.detach()", "returns"), CONTINUOUS),
    Mutant("imagined actions one off", ACTOR, swap("policy.logprob(A)", "policy.logprob(A.roll(1, 0))"), DISCRETE),
    Mutant("entropy of the wrong sign", "dreamer_v3.actor_loss", swap("objective + A", "objective - A"), DISCRETE),
    Mutant(
        "entropy without weights", "dreamer_v3.actor_loss", swap("A * (objective + B)", "A * objective - B"), DISCRETE
    ),
    Mutant(
        "REINFORCE of continuous actions left out where objectives are mixed",
        ACTOR,
        swap("self.mix * A * advantage.detach()", "self.mix * advantage.detach()"),
        MIXED_NORMAL,
    ),
    Mutant(
        "gradient of an action reaches its own log-probability",
        ACTOR,
        swap("policy.logprob(action.detach())", "policy.logprob(action)"),
        MIXED_NORMAL,
    ),
    Mutant(
        "objectives mixed the other way",
        ACTOR,
        swap("self.mix * A * advantage.detach()", "(1 - self.mix) * A * advantage.detach()"),
        MIXED,
    ),
    Mutant("actions clipped with a gradient", "LatentActor.clip", swap("A.detach()", "A"), CONTINUOUS),
    Mutant("std without its offset", "scaled_normal", swap("spread + A", "spread"), CONTINUOUS),
    Mutant("slow critic forgotten", "dreamer_v3.critic_loss", swap("A + B", "A"), DISCRETE),
    Mutant("slow critic is the critic", CRITIC, swap("self.target_critic(feat)", "self.critic(feat)"), DISCRETE),
    Mutant(
        "two-hot's mean summed in order",
        "TwoHot.mean",
        swap("(difference * A).sum(-1)", "sum((p * self.grid(p)).unbind(-1))"),
        ("check_nothing_learned",),
    ),
    Mutant(
        "remainder of the replay ratio lost",
        "Replay.count_batches",
        swap("A * learned // B", "sum(A * 1 // B for _ in range(learned))"),
        ("check_owed",),
    ),
    Mutant(
        "remainder of the replay ratio rounded up",
        "Replay.count_batches",
        swap("A * learned // B", "-(-A * learned // B)"),
        ("check_owed",),
    ),
    Mutant("critic without weights", CRITIC, swap('A * imagined["weight"]', "A"), DISCRETE),
)
