"""Recurrent PPO against the results of sb3-contrib (fixtures: make_recurrent_fixtures.py), and mutants."""

from __future__ import annotations

import pytest

from rlcore.algorithms.on_policy.ppo_recurrent import learner as recurrent
from tests.golden import recurrent_oracle
from tests.golden.mutants import Mutant, changed, given, swap
from tests.golden.oracle import ACTIONS

GRADIENTS, UPDATE = ("check_gradients", "discrete"), ("check_update", "discrete", "base")
ROLLOUT, PARTS = ("check_rollout", "discrete"), ("check_gradients", "multi_discrete")
CELL, MOVE, UNROLL = "Cell._step", "LSTM.cell_update", "ppo_recurrent.Agent.unroll"
AT, RECALL, DRAW = "SequenceRows.at", "ppo_recurrent.Learner.prepare_obs", "ppo_recurrent.Learner.draw"
MUTANTS = (
    # Resets of the carry, and the carry at the start of a sequence.
    Mutant("no reset at is_first", CELL, swap("A.masked_fill(B, 0)", "A"), GRADIENTS),
    Mutant("h alone is reset", CELL, swap("A.masked_fill(B, 0)", 'A.masked_fill(B & (name == "h"), 0)'), GRADIENTS),
    Mutant("reset a row late", UNROLL, swap("is_first if A else B", "is_first.roll(len(carry['h']))"), GRADIENTS),
    Mutant("sequences begin empty", AT, swap("A[first]", "0 * A[first]"), GRADIENTS),
    Mutant("sequences begin with the carry of their second row", AT, swap("A[:, 0]", "A[:, 1]"), GRADIENTS),
    Mutant(
        "sequences begin with the carry of the rollout's first row", AT, swap("A[first]", "A[first % 3]"), GRADIENTS
    ),
    Mutant("c for h", AT, swap("self.carry.items()", "zip(self.carry, (*self.carry.values(),)[::-1])"), GRADIENTS),
    # Division of rows into sequences.
    Mutant("environments before time", DRAW, swap("cut[A].transpose(2, 3)", "cut[A]"), GRADIENTS),
    Mutant("is_first of other rows", AT, swap("self.is_first[rows]", "self.is_first[rows.flip(1)]"), GRADIENTS),
    Mutant("a row that fills a sequence up counts", DRAW, swap("A * own", "A"), GRADIENTS),
    Mutant("a sequence that fills a minibatch up counts", DRAW, swap("A * counted.unsqueeze(-1)", "A"), GRADIENTS),
    Mutant("rows that only reset count", DRAW, swap("A[cut] * own", "own.to(weight)"), GRADIENTS),
    Mutant("more minibatches than asked for", DRAW, swap("math.ceil(A)", "math.floor(A)"), GRADIENTS),
    Mutant("one epoch only", DRAW, swap("config.update_epochs", "1"), UPDATE),
    # Previous action.
    Mutant(
        "the action of the row itself", "history._column", given(past='past | {"action": new["action"][:1]}'), GRADIENTS
    ),
    Mutant("no action before the rollout", "history._column", swap('past["action"]', '0 * past["action"]'), GRADIENTS),
    Mutant("an episode opens with action 0", UNROLL, swap("A.masked_fill(B, 0)", "A"), GRADIENTS),
    Mutant("no action before", UNROLL, swap("A.masked_fill(B, 0)", "0 * A"), PARTS),
    # The cell, and gradients through time.
    Mutant(
        "gates in another order",
        MOVE,
        swap("(row + before).chunk(4, -1)", "(row + before).chunk(4, -1)[::-1]"),
        GRADIENTS,
    ),
    Mutant("no forget gate", MOVE, swap('f.sigmoid() * carry["c"]', 'carry["c"]'), GRADIENTS),
    Mutant("no output gate", MOVE, swap("o.sigmoid() * c.tanh()", "c.tanh()"), GRADIENTS),
    Mutant("what is kept is not squashed", MOVE, swap("c.tanh()", "c"), GRADIENTS),
    Mutant(
        "no gradient along a sequence", CELL, swap("A.masked_fill(B, 0)", "A.detach().masked_fill(B, 0)"), GRADIENTS
    ),
    Mutant(
        "the value loss does not reach the core",
        UNROLL,
        swap("self.critic(features)", "self.critic(features.detach())"),
        GRADIENTS,
    ),
    # The value after the rollout.
    Mutant(
        "the arrival finds no carry",
        RECALL,
        swap("Seen(A, B, last.carry)", "Seen(A, B, {k: 0 * v for k, v in last.carry.items()})"),
        ROLLOUT,
    ),
    Mutant("the arrival opens an episode", RECALL, swap("last.is_first", "torch.ones_like(last.is_first)"), ROLLOUT),
    Mutant(
        "the arrival is seen with the carry before the last row",
        RECALL,
        swap("Seen(A, B, last.carry)", "Seen(A, B, {k: steps.extras[k][-1] for k in last.carry})"),
        ROLLOUT,
    ),
)


@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_gradients_match_sb3_contrib(kind: str) -> None:
    recurrent_oracle.check_gradients(recurrent, kind)


@pytest.mark.parametrize("variant", recurrent_oracle.VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_update_matches_sb3_contrib(kind: str, variant: str) -> None:
    recurrent_oracle.check_update(recurrent, kind, variant)


@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_recurrent_update_from_raw_rewards_matches_sb3_contrib(kind: str) -> None:
    recurrent_oracle.check_rollout(recurrent, kind)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_golden_check_detects_ppo_recurrent_mutant(mutant: Mutant) -> None:
    name, *arguments = mutant.check
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        getattr(recurrent_oracle, name)(recurrent, *arguments)
