"""Mutants of Dreamer V2: one change of one named function each, with the check that detects it."""

from __future__ import annotations

from tests.golden.dreamer_mutants import of_all
from tests.golden.mutants import Mutant, given, returned, swap

DISCRETE, PICTURES = ("check_losses", "discrete"), ("check_losses", "multi_discrete")
MIXED, CONTINUOUS = ("check_losses", "mixed"), ("check_losses", "continuous")
CLAMPED, SQUASHED = ("check_losses", "clamped"), ("check_losses", "tanh_normal")

MODEL, ACTOR = "dreamer_v2.Learner.model_loss", "dreamer_v2.Behavior.actor_objective"
REWARD = "dreamer_v2.Behavior.predicted_reward"
CRITIC = "DreamerBehavior.critic_objective"
KL, ACTS = "dreamer_v2.kl_loss", "dreamer_v2.actor_loss"
MUTANTS = (
    *of_all(MODEL, DISCRETE, PICTURES),
    # KL divergence.
    Mutant("KL sides swapped", "categorical_kl", swap("p.exp() * A", "q.exp() * A"), DISCRETE),
    Mutant("balance turned round", KL, given(alpha="1 - alpha"), DISCRETE),
    Mutant("gradient of the prior's KL reaches the posterior", KL, swap("posterior.detach()", "posterior"), DISCRETE),
    Mutant("gradient of the posterior's KL reaches the prior", KL, swap("prior.detach()", "prior"), DISCRETE),
    Mutant("no free nats of the mean", "mean_free_nats", returned("kl"), CLAMPED),
    Mutant("free nats of each row in place of the mean", KL, given(ranks="None", nats="100 * nats"), DISCRETE),
    Mutant("free nats of the mean in place of each row", MODEL, swap("self.ranks if A else None", "self.ranks"), MIXED),
    Mutant(
        "clamp of each latent",
        KL,
        swap(
            "(categorical_kl(posterior.detach(), prior), B)",
            "((posterior.exp() * (posterior - prior)).sum(-1).clamp(nats).sum(-1), B)",
        ),
        MIXED,
    ),
    # State.
    Mutant(
        "an episode begins with ones", "RSSM.initial", swap("like.new_zeros(size)", "like.new_ones(size)"), DISCRETE
    ),
    Mutant("update gate without its bias", "LayerNormGRU.forward", swap("update - 1", "update"), DISCRETE),
    Mutant("no gradient through samples", "sample_one_hot", swap("A + (p - p.detach())", "A"), DISCRETE),
    # Predictions from the state, and their time step.
    Mutant("vectors in symlog space", "KeyEncoder.preprocess", swap("self.symlog", "True"), DISCRETE),
    Mutant("squares without their half", "unit_normal_loss", swap("0.5 * A", "A"), PICTURES),
    Mutant("γ left out of what ends learn", MODEL, swap("self.config.gamma * A", "A"), PICTURES),
    Mutant("discount_scale_factor dropped", MODEL, swap("config.discount_scale_factor * A", "A"), PICTURES),
    Mutant("kl_regularizer dropped", MODEL, swap("config.kl_regularizer * kl", "kl"), PICTURES),
    # Targets and their weights.
    Mutant(
        "reward of the state stepped to",
        REWARD,
        swap("imagined.feat[:-1]", "imagined.feat[1:]"),
        DISCRETE,
    ),
    Mutant("value of the state that is left", ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    Mutant("discount one step off", ACTOR, swap("feat[1:-1]", "feat[2:]"), PICTURES),
    Mutant("first discount imagined", ACTOR, swap("~terminated", "terminated | ~terminated"), PICTURES),
    Mutant("weights one step off", ACTOR, swap("torch.cat([A, discount[:-1]])", "discount"), DISCRETE),
    Mutant("weights with a gradient", ACTOR, swap("A.detach().cumprod(0)", "A.cumprod(0)"), CONTINUOUS),
    Mutant("discount without a gradient", ACTOR, swap("A.sigmoid()", "A.sigmoid().detach()"), CONTINUOUS),
    Mutant("likelier end in place of its chance", ACTOR, swap("A.sigmoid()", "(A > 0).to(reward)"), PICTURES),
    # Actor and critic.
    Mutant("value by the critic itself", ACTOR, swap("self.target_critic(feat)", "self.critic(feat)"), DISCRETE),
    Mutant("no baseline", ACTS, swap("target - baseline", "target"), DISCRETE),
    Mutant("advantage not detached", ACTS, swap("(target - baseline).detach()", "(target - baseline)"), CLAMPED),
    Mutant("target of the state that is left", ACTOR, swap("target[1:]", "target[:-1]"), DISCRETE),
    Mutant("imagined actions one off", ACTOR, swap("action[:-1]", "action[1:]"), DISCRETE),
    Mutant("actor's input not detached", ACTOR, swap("A.policy(feat[:-2].detach())", "A.policy(feat[:-2])"), CLAMPED),
    Mutant("objectives mixed the other way", ACTS, given(mix="1 - mix"), MIXED),
    Mutant("entropy of the wrong sign", ACTS, given(coef="-coef"), DISCRETE),
    Mutant("actor without weights", ACTS, given(weight="torch.ones_like(weight)"), DISCRETE),
    Mutant("std without its offset", "squashed_normal", swap("spread + A", "spread"), SQUASHED),
    Mutant("std as of V3", "truncated_normal", swap("2 * A", "A"), CONTINUOUS),
    Mutant("truncated normal not normalised", "TruncatedNormal.logprob", swap("A - self.inside.log()", "A"), CLAMPED),
    Mutant("critic without weights", CRITIC, swap("weight * A", "A"), DISCRETE),
    Mutant(
        "slow critic moves at every step", "DreamerLearner.update", swap("A.target_tau(B)", "1.0"), ("check_copies",)
    ),
    Mutant("weights decay by the gradient", "dreamer_v2.Config.update_rule", returned("settings"), ("check_decay",)),
)
