"""Recurrent PPO against the results of sb3-contrib (tests.golden.makers.ppo_recurrent), and mutants."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from rlcore.algorithms.on_policy.ppo_recurrent import learner as recurrent
from rlcore.data.minibatches import split
from rlcore.functional.stats import standardize
from rlcore.types import Batch, Trajectory
from tests.golden import on_policy
from tests.golden.fixtures import arrays, check_numbers, part, settings, tensors
from tests.golden.mutants import Mutant, given, swap
from tests.golden.on_policy import ACTIONS, NETWORKS, PPO, KnownOrder, check_parameters, ours
from tests.golden.test_ppo_golden import config_values

RECURRENT = settings("recurrent")
VARIANTS: dict[str, dict[str, Any]] = RECURRENT["variants"]


def make_learner(kind: str, variant: str, precision: str) -> Any:
    setting, content = PPO["common"] | VARIANTS[variant], arrays(f"recurrent_{kind}")
    networks = NETWORKS | {"layer_norm": False}
    values = config_values(setting, len(content["rows/reward"]) - 1) | {
        "name": "ppo_recurrent",
        "gamma": RECURRENT["gamma"],
        "gae_lambda": RECURRENT["gae_lambda"],
        "per_rank_sequence_length": RECURRENT["sequence_lengths"][setting["cuts"]],
        "per_rank_num_batches": RECURRENT["minibatches"],
        "rnn": {"lstm": {"hidden_size": PPO["units"]}},
        "actor": networks | {"state_dependent_std": False},
        "critic": networks,
    }
    return on_policy.make_learner(recurrent, values, kind, part(content, "initial/"), precision)


def make_batch(kind: str, dtype: torch.dtype) -> Batch:
    """Return the rollout with the carry before each row, the action before the first row, and the arrival."""
    rows = tensors(part(arrays(f"recurrent_{kind}"), "rows/"))
    rows = {name: value.to(dtype) if value.is_floating_point() else value for name, value in rows.items()}
    flags = ("action", "reward", "terminated", "truncated", "is_first")
    carry = {name: rows[name][-1] for name in ("h", "c")}
    extras = {name: rows[name][:-1] for name in carry}
    extras |= {"value": rows["old_value"][:-1], "logprob": rows["old_logprob"][:-1]}
    nothing = rows["is_first"][:0]
    past = {"action": rows["action_before"].unsqueeze(0), "is_first": nothing}
    steps = Trajectory({"state": rows["obs"][:-1]}, *(rows[name][:-1] for name in flags), extras, past=past)
    return Batch(steps, Trajectory({"state": rows["obs"][-1]}, *(rows[name][-1] for name in flags), carry=carry), 0)


def with_known_advantages(learner: Any, kind: str, batch: Batch) -> Any:
    """Return the samples of a batch with SB3's advantages and returns in float64 instead of our own."""
    rows = part(arrays(f"recurrent_{kind}"), "rows/")
    taken = {name: torch.from_numpy(rows[name][:-1]).flatten() for name in ("advantage", "returns")}
    samples = type(learner).samples(learner, batch)
    return samples._replace(weight=samples.weight.double(), **taken)


def orders(kind: str, variant: str) -> KnownOrder:
    return KnownOrder(arrays(f"recurrent_{kind}")[f"orders/{VARIANTS[variant]['cuts']}"])


@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_gradients_match_sb3_contrib(kind: str) -> None:
    """Losses and gradients of the minibatches of one epoch in float64."""
    content, learner = arrays(f"recurrent_{kind}"), make_learner(kind, "base", "64-true")
    batch = make_batch(kind, torch.float64)
    samples = with_known_advantages(learner, kind, batch)
    rows, weight = learner.draw(samples.weight.view(batch.steps.reward.shape), orders(kind, "base"))
    advantage = standardize(samples.advantage[rows[0]], weight[0])
    parameters, coefs = dict(learner.agent.named_parameters()), {"clip_coef": 0.2, "ent_coef": 0.05}
    minibatches = [minibatch for (minibatch,) in split(samples.at(rows[0], advantage, weight[0]), 1)]
    assert len(minibatches) == RECURRENT["minibatches"]
    for k, minibatch in enumerate(minibatches):
        total, count, means = learner.loss(minibatch, coefs)
        check_numbers(means, {f"Loss/{name}": value for name, value in part(content, f"loss/{k}/").items()}, 1e-10)
        found = torch.autograd.grad(total / count, [*parameters.values()])
        expected = ours(part(content, f"gradient/{k}/"))
        assert expected.keys() == parameters.keys()
        for name, gradient in zip(parameters, found, strict=True):
            # Measured 9e-16; a mutant misses a loss by 4e-4 or more, or a gradient by a third.
            gap = (gradient - expected[name]).abs().max().item()
            assert gap < 1e-11, f"minibatch {k}: gradients of {name} differ by {gap:.1e}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_update_matches_sb3_contrib(kind: str, variant: str) -> None:
    """Weights, logged losses and gradient norms of one update in float64."""
    content, learner = arrays(f"recurrent_{kind}"), make_learner(kind, variant, "64-true")
    learner.samples = lambda batch: with_known_advantages(learner, kind, batch)
    metrics = learner.update(make_batch(kind, torch.float64), orders(kind, variant))
    check_parameters(learner, part(content, f"final/{variant}/"), 1e-11)
    logged = part(content, f"logged/{variant}/")
    assert learner.updates == logged["steps"]
    expected = {f"Loss/{term}_loss": logged[f"{term}_loss"] for term in ("policy", "value", "entropy")}
    check_numbers(metrics, expected | {"Info/grad_norm": logged["grad_norm"]}, 1e-10)


@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_update_from_raw_rewards_matches_sb3_contrib(kind: str) -> None:
    """The update from raw rewards in float32; the value after the rollout uses the carry after it."""
    learner = make_learner(kind, "base", "32-true")
    learner.update(make_batch(kind, torch.float32), orders(kind, "base"))
    # Measured 3e-7; the weakest mutant that only this check detects moves parameters by more than 1e-4.
    check_parameters(learner, part(arrays(f"recurrent_{kind}"), "final/base/"), 3e-6)


# Mutants --------------------------------------------------------------------------------------------------------------

GRADIENTS = partial(test_ppo_recurrent_gradients_match_sb3_contrib, "discrete")
PARTS = partial(test_ppo_recurrent_gradients_match_sb3_contrib, "multi_discrete")
UPDATE = partial(test_ppo_recurrent_update_matches_sb3_contrib, "discrete", "base")
ROLLOUT = partial(test_ppo_recurrent_update_from_raw_rewards_matches_sb3_contrib, "discrete")

CELL, MOVE, UNROLL = "Cell._step", "LSTM.cell_update", "ppo_recurrent.Agent.unroll"
AT, RECALL, DRAW = "SequenceRows.at", "ppo_recurrent.Learner.prepare_obs", "ppo_recurrent.Learner.draw"
MUTANTS: dict[str, Mutant] = {
    # Resets of the carry, and the carry at the start of a sequence.
    "no reset at is_first": Mutant(CELL, swap("A.masked_fill(B, 0)", "A"), GRADIENTS),
    "h alone is reset": Mutant(CELL, swap("A.masked_fill(B, 0)", 'A.masked_fill(B & (name == "h"), 0)'), GRADIENTS),
    "reset a row late": Mutant(UNROLL, swap("is_first if A else B", "is_first.roll(len(carry['h']))"), GRADIENTS),
    "sequences begin empty": Mutant(AT, swap("A[first]", "0 * A[first]"), GRADIENTS),
    "sequences begin with the carry of their second row": Mutant(AT, swap("A[:, 0]", "A[:, 1]"), GRADIENTS),
    "sequences begin with the carry of the rollout's first row": Mutant(
        AT, swap("A[first]", "A[first % 3]"), GRADIENTS
    ),
    "c for h": Mutant(AT, swap("self.carry.items()", "zip(self.carry, (*self.carry.values(),)[::-1])"), GRADIENTS),
    # Division of rows into sequences.
    "environments before time": Mutant(DRAW, swap("cut[A].transpose(2, 3)", "cut[A]"), GRADIENTS),
    "is_first of other rows": Mutant(AT, swap("self.is_first[rows]", "self.is_first[rows.flip(1)]"), GRADIENTS),
    "a row that fills a sequence up counts": Mutant(DRAW, swap("A * own", "A"), GRADIENTS),
    "a sequence that fills a minibatch up counts": Mutant(DRAW, swap("A * counted.unsqueeze(-1)", "A"), GRADIENTS),
    "rows that only reset count": Mutant(DRAW, swap("A[cut] * own", "own.to(weight)"), GRADIENTS),
    "more minibatches than asked for": Mutant(DRAW, swap("math.ceil(A)", "math.floor(A)"), GRADIENTS),
    "one epoch only": Mutant(DRAW, swap("config.update_epochs", "1"), UPDATE),
    # Previous action.
    "the action of the row itself": Mutant(
        "history._column", given(past='past | {"action": new["action"][:1]}'), GRADIENTS
    ),
    "no action before the rollout": Mutant("history._column", swap('past["action"]', '0 * past["action"]'), GRADIENTS),
    "an episode opens with action 0": Mutant(UNROLL, swap("A.masked_fill(B, 0)", "A"), GRADIENTS),
    "no action before": Mutant(UNROLL, swap("A.masked_fill(B, 0)", "0 * A"), PARTS),
    # The cell, and gradients through time.
    "gates in another order": Mutant(
        MOVE, swap("(row + before).chunk(4, -1)", "(row + before).chunk(4, -1)[::-1]"), GRADIENTS
    ),
    "no forget gate": Mutant(MOVE, swap('f.sigmoid() * carry["c"]', 'carry["c"]'), GRADIENTS),
    "no output gate": Mutant(MOVE, swap("o.sigmoid() * c.tanh()", "c.tanh()"), GRADIENTS),
    "what is kept is not squashed": Mutant(MOVE, swap("c.tanh()", "c"), GRADIENTS),
    "no gradient along a sequence": Mutant(
        CELL, swap("A.masked_fill(B, 0)", "A.detach().masked_fill(B, 0)"), GRADIENTS
    ),
    "the value loss does not reach the core": Mutant(
        UNROLL, swap("self.critic(features)", "self.critic(features.detach())"), GRADIENTS
    ),
    # The value after the rollout.
    "the arrival finds no carry": Mutant(
        RECALL, swap("Seen(A, B, C)", "Seen(A, B, {k: 0 * v for k, v in last.carry.items()})"), ROLLOUT
    ),
    "the arrival opens an episode": Mutant(RECALL, swap("last.is_first", "torch.ones_like(last.is_first)"), ROLLOUT),
    "the arrival is seen with the carry before the last row": Mutant(
        RECALL, swap("Seen(A, B, C)", "Seen(A, B, {k: steps.extras[k][-1] for k in last.carry})"), ROLLOUT
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_ppo_recurrent_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
