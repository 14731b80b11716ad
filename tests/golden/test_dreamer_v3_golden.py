"""Dreamer V3 against losses and gradients of SheepRL (tests.golden.makers.dreamer_v3), and mutants."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from tests.golden.dreamers import Case, Names, make_case, make_learner, make_parts, near, of_all, type_keys
from tests.golden.fixtures import arrays, part, settings
from tests.golden.mutants import Mutant, given, returned, swap
from tests.soaking import always, heavy

pytestmark = heavy

SHEEPRL = settings("dreamer_v3")
VARIANTS: dict[str, dict[str, Any]] = SHEEPRL["variants"]


def case_of(variant: str, *more: str) -> Case:
    """Return one batch with SheepRL's samples; `more` are further keys."""
    content = part(arrays("dreamer_v3"), f"{variant}/")
    nvec = tuple(SHEEPRL["nvec"]) if "noise/choice0" in content else ()
    typed = [*type_keys(SHEEPRL["common"] | VARIANTS[variant]), *more]
    learner = make_learner(dreamer_v3, ["exp=dreamer_v3", "algo=dreamer_v3_S", *typed], nvec, 16)
    learner.behavior.moments.low, learner.behavior.moments.high = map(torch.tensor, SHEEPRL["scales"][variant])
    width = 0 if learner.config.world_model.decoupled_rssm else learner.agent.world.rssm.sizes[0]
    return make_case(learner, content, nvec, Names(learner.config.critic.mlp_layers, True, width).of, rolled=False)


@always
@pytest.mark.parametrize("variant", VARIANTS)
def test_dreamer_v3_losses_and_gradients_match_sheeprl(variant: str) -> None:
    """Every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case = case_of(variant)
    (_, tau), _ = case.check_losses()
    assert tau == case.learner.config.critic.tau
    near("low", case.learner.behavior.moments.low, case.content["low"])
    near("high", case.learner.behavior.moments.high, case.content["high"])


def test_dreamer_v3_update_logs_metrics_of_sheeprl() -> None:
    """The update is between two updates of the target critic; there is no exploration noise."""
    case_of("mixed", "algo.critic.per_rank_target_network_update_freq=2").check_update(150, None)


def test_new_dreamer_v3_predicts_reward_and_value_zero() -> None:
    """The output weights of reward and critic are 0."""
    learner = make_learner(dreamer_v3, ["exp=dreamer_v3", *type_keys(SHEEPRL["common"])], (), 16)
    feat = torch.randn(7, sum(learner.agent.world.rssm.sizes), generator=torch.Generator().manual_seed(0)).double()
    for output in (
        learner.agent.world.predict_reward(feat),
        learner.behavior.number.mean(learner.behavior.critic(feat)),
    ):
        assert not output.any(), output


def test_dreamer_v3_replay_ratio_counts_whole_batches() -> None:
    """Three gradient steps are due per ten policy steps, from the last random one on, as soon as one is whole."""
    keys = ["algo.replay_ratio=0.3", "algo.learning_starts=7", "algo.per_rank_sequence_length=4"]
    typed = ["exp=dreamer_v3", *type_keys(SHEEPRL["common"]), *keys]
    memory, taken = make_parts(dreamer_v3, typed, (), 16)[1], 0
    for steps in range(200):
        while 10 * (taken + 1) <= 3 * (steps - 6):
            taken += 1
        assert memory.count_batches(steps) == taken, (steps, memory.count_batches(steps), taken)


# Mutants --------------------------------------------------------------------------------------------------------------

DISCRETE, MIXED, MIXED_NORMAL, CONTINUOUS, DECOUPLED = (
    partial(test_dreamer_v3_losses_and_gradients_match_sheeprl, variant)
    for variant in ("multi_discrete", "mixed", "continuous_mixed", "continuous", "decoupled")
)
UPDATE = test_dreamer_v3_update_logs_metrics_of_sheeprl
NEW, OWED = test_new_dreamer_v3_predicts_reward_and_value_zero, test_dreamer_v3_replay_ratio_counts_whole_batches

MODEL = "dreamer_v3.Learner.model_loss"
ACTOR, CRITIC, REWARD = (
    f"dreamer_v3.Behavior.{name}" for name in ("actor_objective", "critic_objective", "predicted_reward")
)
KL = "dreamer_v3.kl_loss"
MUTANTS: dict[str, Mutant] = {
    **of_all(MODEL, DISCRETE, DISCRETE, UPDATE),
    # KL divergence.
    "KL sides swapped": Mutant(KL, given(dynamic="representation", representation="dynamic"), DISCRETE),
    "KL from prior to posterior": Mutant("categorical_kl", swap("p.exp() * A", "q.exp() * A"), DISCRETE),
    "gradient of the prior's KL reaches the posterior": Mutant(KL, swap("posterior.detach()", "posterior"), DISCRETE),
    "gradient of the posterior's KL reaches the prior": Mutant(KL, swap("prior.detach()", "prior"), DISCRETE),
    "clamp of each latent": Mutant(
        KL,
        swap(
            "categorical_kl(posterior.detach(), prior)",
            "(posterior.exp() * (posterior - prior)).sum(-1).clamp(nats).sum(-1)",
        ),
        DISCRETE,
    ),
    "no free nats": Mutant("free_nats", returned("kl"), DISCRETE),
    "entropy of one latent": Mutant("categorical_entropy", swap("A.sum((-2, -1))", "A.sum(-1).mean(-1)"), DISCRETE),
    # State.
    "initial h without its tanh": Mutant("RSSM.initial", swap("A.tanh()", "A"), DISCRETE),
    "update gate without its bias": Mutant("LayerNormGRU.forward", swap("update - 1", "update"), DISCRETE),
    "unimix of logits": Mutant("unimix", swap("F.log_softmax(A, -1)", "F.log_softmax((1 - share) * A, -1)"), DISCRETE),
    "no unimix": Mutant("unimix", given(share="0.0"), CONTINUOUS),
    "no gradient through samples": Mutant("sample_one_hot", swap("A + (p - p.detach())", "A"), DISCRETE),
    # Predictions from the state, and their time step.
    "no start at the first row": Mutant(
        "open_at_first_row", swap("torch.ones_like(A)", "torch.zeros_like(A)"), CONTINUOUS
    ),
    "vectors without symlog": Mutant("KeyEncoder.preprocess", swap("symlog(vector)", "vector"), DISCRETE),
    "other grid": Mutant("TwoHot.grid", swap('A == "symexp"', "True"), DISCRETE),
    "reward without symlog": Mutant("TwoHot.loss", swap('A == "symlog"', "False"), DISCRETE),
    "weights of the two bins exchanged": Mutant("TwoHot.loss", swap("x - low", "high - x"), DISCRETE),
    "continue_scale_factor dropped": Mutant(MODEL, swap("config.continue_scale_factor * A", "A"), MIXED),
    # Returns and their weights.
    "reward of the state that is left": Mutant(REWARD, swap("imagined.feat[1:]", "imagined.feat[:-1]"), DISCRETE),
    "value of the state that is left": Mutant(ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    "discount one step off": Mutant(ACTOR, swap("continues[:-1]", "continues[1:]"), DISCRETE),
    "weights one step off": Mutant(
        ACTOR, swap("torch.cat([A, config.gamma * B])", "config.gamma * continues"), DISCRETE
    ),
    "no weight where an episode ended": Mutant(ACTOR, swap("~terminated", "terminated"), DISCRETE),
    "γ left out of the weights": Mutant(ACTOR, swap("config.gamma * A[:-1].detach()", "A[:-1]"), DISCRETE),
    "chance of going on in place of the likelier": Mutant(
        "imagine_continue", swap("(A > 0).float()", "A.sigmoid()"), DISCRETE
    ),
    # Actor and critic.
    "no percentile floor": Mutant("ReturnScale.forward", swap("A.clamp(min=B)", "A"), DECOUPLED),
    "percentiles not followed": Mutant("ReturnScale.forward", swap("1 - config.decay", "0.0"), DISCRETE),
    "no baseline": Mutant(ACTOR, swap("returns - value[:-1]", "returns"), DISCRETE),
    "actor's input not detached": Mutant(
        ACTOR, swap("A.policy(feat[:-1].detach())", "A.policy(feat[:-1])"), CONTINUOUS
    ),
    "targets of the critic not detached": Mutant(ACTOR, swap("returns.detach()", "returns"), CONTINUOUS),
    "imagined actions one off": Mutant(ACTOR, swap("policy.logprob(A)", "policy.logprob(A.roll(1, 0))"), DISCRETE),
    "entropy of the wrong sign": Mutant("dreamer_v3.actor_loss", swap("objective + A", "objective - A"), DISCRETE),
    "entropy without weights": Mutant(
        "dreamer_v3.actor_loss", swap("A * (objective + B)", "A * objective - B"), DISCRETE
    ),
    "REINFORCE of continuous actions left out where objectives are mixed": Mutant(
        ACTOR, swap("self.mix * A * advantage.detach()", "self.mix * advantage.detach()"), MIXED_NORMAL
    ),
    "gradient of an action reaches its own log-probability": Mutant(
        ACTOR, swap("policy.logprob(action.detach())", "policy.logprob(action)"), MIXED_NORMAL
    ),
    "objectives mixed the other way": Mutant(
        ACTOR, swap("self.mix * A * advantage.detach()", "(1 - self.mix) * A * advantage.detach()"), MIXED
    ),
    "actions clipped with a gradient": Mutant("LatentActor.clip", swap("A.detach()", "A"), CONTINUOUS),
    "std without its offset": Mutant("scaled_normal", swap("spread + A", "spread"), CONTINUOUS),
    "slow critic forgotten": Mutant("dreamer_v3.critic_loss", swap("A + B", "A"), DISCRETE),
    "slow critic is the critic": Mutant(CRITIC, swap("critic.target_network(feat)", "critic.network(feat)"), DISCRETE),
    "two-hot's mean summed in order": Mutant(
        "TwoHot.mean", swap("(difference * A).sum(-1)", "sum((p * self.grid(p)).unbind(-1))"), NEW
    ),
    "remainder of the replay ratio lost": Mutant(
        "Replay.count_batches", swap("A * learned // B", "sum(A * 1 // B for _ in range(learned))"), OWED
    ),
    "remainder of the replay ratio rounded up": Mutant(
        "Replay.count_batches", swap("A * learned // B", "-(-A * learned // B)"), OWED
    ),
    "critic without weights": Mutant(CRITIC, swap('A * imagined["weight"]', "A"), DISCRETE),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_dreamer_v3_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
