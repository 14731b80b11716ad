"""Dreamer V2 against losses and gradients of SheepRL (tests.golden.makers.dreamer_v2), and mutants."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.dreamer.dreamer_v2 import learner as dreamer_v2
from rlcore.optim import rules
from rlcore.optim.optimizer_keys import OptimizerConfig
from tests.golden.dreamers import Case, Names, RecordedStep, batch_of, make_case, make_learner, near, of_all, type_keys
from tests.golden.fixtures import arrays, part, settings
from tests.golden.mutants import Mutant, given, returned, swap
from tests.soaking import always, heavy

pytestmark = heavy

SHEEPRL = settings("dreamer_v2")
VARIANTS: dict[str, dict[str, Any]] = SHEEPRL["variants"]


def learner_of(variant: str, *more: str) -> Any:
    """Return a learner of a variant; `more` are further keys."""
    typed = [*type_keys(SHEEPRL["common"] | VARIANTS[variant]), *more]
    return make_learner(dreamer_v2, ["exp=dreamer_v2", *typed], tuple(SHEEPRL["choices"].get(variant, ())), 64)


def case_of(variant: str, *more: str) -> Case:
    """Return one batch with SheepRL's samples; `more` are further keys."""
    content, nvec = part(arrays("dreamer_v2"), f"{variant}/"), tuple(SHEEPRL["choices"].get(variant, ()))
    learner = learner_of(variant, *more)
    names = Names(learner.config.critic.mlp_layers, learner.config.layer_norm, learner.agent.world.rssm.sizes[0])
    return make_case(learner, content, nvec, names.of)


@always
@pytest.mark.parametrize("variant", VARIANTS)
def test_dreamer_v2_losses_and_gradients_match_sheeprl(variant: str) -> None:
    """Every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case_of(variant).check_losses()


def test_dreamer_v2_copies_target_critic_every_hundredth_step() -> None:
    """The target critic is copied before the first and each hundredth step (arXiv:2010.02193, B)."""
    learner = learner_of("discrete")
    batch = batch_of(part(arrays("dreamer_v2"), "discrete/batch/"), (4,))
    learner.step = step = RecordedStep()
    for _ in range(201):
        learner.update(batch, np.random.default_rng(0))
    taus = [tau for _, tau in step.inputs]
    assert [i for i, tau in enumerate(taus) if tau] == [0, 100, 200] and {*taus} == {0.0, 1.0}


def test_dreamer_v2_weight_decay_matches_sheeprl() -> None:
    """Weights after ten steps of an optimizer whose weight decay is independent of the learning rate."""
    content = part(arrays("dreamer_v2"), "decay/")
    config = dreamer_v2.Config(total_steps=1).update_rule(OptimizerConfig(lr=1e-2, eps=1e-5, weight_decay=1e-2))
    vector, lr = torch.from_numpy(content["before"]).double(), torch.tensor(1e-2, dtype=torch.float64)
    state = rules.slots(config, vector)
    for t, gradient in enumerate(torch.from_numpy(content["gradients"]).double(), 1):
        vector, state = rules.update(config, vector, gradient, state, torch.tensor(t, dtype=torch.float64), lr)
    near("weights", vector, content["after"])


def test_dreamer_v2_update_logs_metrics_of_sheeprl() -> None:
    """The exploration noise has decayed by 1.5 half-lives to its minimum."""
    keys = ["algo.actor.expl_amount=0.4", "algo.actor.expl_decay=100", "algo.actor.expl_min=0.2"]
    keys += [f"algo.{part}.optimizer.weight_decay=0" for part in ("world_model", "actor", "critic")]
    case_of("mixed", *keys).check_update(150, 0.2)


# Mutants --------------------------------------------------------------------------------------------------------------

DISCRETE, PICTURES, MIXED, CONTINUOUS, CLAMPED, SQUASHED = (
    partial(test_dreamer_v2_losses_and_gradients_match_sheeprl, variant)
    for variant in ("discrete", "multi_discrete", "mixed", "continuous", "clamped", "tanh_normal")
)
UPDATE = test_dreamer_v2_update_logs_metrics_of_sheeprl
COPIES, DECAY = test_dreamer_v2_copies_target_critic_every_hundredth_step, test_dreamer_v2_weight_decay_matches_sheeprl

MODEL, ACTOR = "dreamer_v2.Learner.model_loss", "dreamer_v2.Behavior.actor_objective"
REWARD = "dreamer_v2.Behavior.predicted_reward"
CRITIC = "DreamerBehavior.critic_objective"
KL, ACTS = "dreamer_v2.kl_loss", "dreamer_v2.actor_loss"
MUTANTS: dict[str, Mutant] = {
    **of_all(MODEL, DISCRETE, PICTURES, UPDATE),
    # KL divergence.
    "KL sides swapped": Mutant("categorical_kl", swap("p.exp() * A", "q.exp() * A"), DISCRETE),
    "balance turned round": Mutant(KL, given(alpha="1 - alpha"), DISCRETE),
    "gradient of the prior's KL reaches the posterior": Mutant(KL, swap("posterior.detach()", "posterior"), DISCRETE),
    "gradient of the posterior's KL reaches the prior": Mutant(KL, swap("prior.detach()", "prior"), DISCRETE),
    "no free nats of the mean": Mutant("mean_free_nats", returned("kl"), CLAMPED),
    "free nats of each row in place of the mean": Mutant(KL, given(ranks="None", nats="100 * nats"), DISCRETE),
    "free nats of the mean in place of each row": Mutant(MODEL, swap("self.ranks if A else None", "self.ranks"), MIXED),
    "clamp of each latent": Mutant(
        KL,
        swap(
            "(categorical_kl(posterior.detach(), prior), B)",
            "((posterior.exp() * (posterior - prior)).sum(-1).clamp(nats).sum(-1), B)",
        ),
        MIXED,
    ),
    # State.
    "an episode begins with ones": Mutant(
        "RSSM.initial", swap("like.new_zeros(size)", "like.new_ones(size)"), DISCRETE
    ),
    "update gate without its bias": Mutant("LayerNormGRU.forward", swap("update - 1", "update"), DISCRETE),
    "no gradient through samples": Mutant("sample_one_hot", swap("A + (p - p.detach())", "A"), DISCRETE),
    # Predictions from the state, and their time step.
    "vectors in symlog space": Mutant("KeyEncoder.preprocess", swap("self.symlog", "True"), DISCRETE),
    "squares without their half": Mutant("unit_normal_loss", swap("0.5 * A", "A"), PICTURES),
    "γ left out of what ends learn": Mutant(MODEL, swap("self.config.gamma * A", "A"), PICTURES),
    "discount_scale_factor dropped": Mutant(MODEL, swap("config.discount_scale_factor * A", "A"), PICTURES),
    "kl_regularizer dropped": Mutant(MODEL, swap("config.kl_regularizer * kl", "kl"), PICTURES),
    # Targets and their weights.
    "reward of the state stepped to": Mutant(REWARD, swap("imagined.feat[:-1]", "imagined.feat[1:]"), DISCRETE),
    "value of the state that is left": Mutant(ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    "discount one step off": Mutant(ACTOR, swap("feat[1:-1]", "feat[2:]"), PICTURES),
    "first discount imagined": Mutant(ACTOR, swap("~terminated", "terminated | ~terminated"), PICTURES),
    "weights one step off": Mutant(ACTOR, swap("torch.cat([A, discount[:-1]])", "discount"), DISCRETE),
    "weights with a gradient": Mutant(ACTOR, swap("A.detach().cumprod(0)", "A.cumprod(0)"), CONTINUOUS),
    "discount without a gradient": Mutant(ACTOR, swap("A.sigmoid()", "A.sigmoid().detach()"), CONTINUOUS),
    "likelier end in place of its chance": Mutant(ACTOR, swap("A.sigmoid()", "(A > 0).to(reward)"), PICTURES),
    # Actor and critic.
    "value by the critic itself": Mutant(ACTOR, swap("self.target_critic(feat)", "self.critic(feat)"), DISCRETE),
    "no baseline": Mutant(ACTS, swap("target - baseline", "target"), DISCRETE),
    "advantage not detached": Mutant(ACTS, swap("(target - baseline).detach()", "(target - baseline)"), CLAMPED),
    "target of the state that is left": Mutant(ACTOR, swap("target[1:]", "target[:-1]"), DISCRETE),
    "imagined actions one off": Mutant(ACTOR, swap("action[:-1]", "action[1:]"), DISCRETE),
    "actor's input not detached": Mutant(ACTOR, swap("A.policy(feat[:-2].detach())", "A.policy(feat[:-2])"), CLAMPED),
    "objectives mixed the other way": Mutant(ACTS, given(mix="1 - mix"), MIXED),
    "entropy of the wrong sign": Mutant(ACTS, given(coef="-coef"), DISCRETE),
    "actor without weights": Mutant(ACTS, given(weight="torch.ones_like(weight)"), DISCRETE),
    "std without its offset": Mutant("squashed_normal", swap("spread + A", "spread"), SQUASHED),
    "std as of V3": Mutant("truncated_normal", swap("2 * A", "A"), CONTINUOUS),
    "truncated normal not normalised": Mutant("TruncatedNormal.logprob", swap("A - self.inside.log()", "A"), CLAMPED),
    "critic without weights": Mutant(CRITIC, swap("weight * A", "A"), DISCRETE),
    "slow critic moves at every step": Mutant("DreamerLearner.update", swap("A.target_tau(B)", "1.0"), COPIES),
    "weights decay by the gradient": Mutant("dreamer_v2.Config.update_rule", returned("settings"), DECAY),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_dreamer_v2_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
