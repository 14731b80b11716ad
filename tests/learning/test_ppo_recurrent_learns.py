"""Recurrent PPO recalls a cue from five steps before, within seconds, and mutants do not.

Returns found on Recall-v0 (tests/probes/envs.py), the mean of the last 200 episodes of 20,000 steps, seeds 0 to 2; 1 is
the best possible, and an agent that sees only the newest observation earns 0:

    LSTM                            0.86 0.99 1.00
    GRU                             1.00 0.99 1.00
    PPO                            -0.02 0.06 0.05
    nothing is carried             -0.02 -0.02 0.09
    environments before time        0.01 0.04 0.05

Sequences with an empty initial carry, and missing gradients through time, sometimes pass here (0.92, 0.99);
the golden values detect them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.golden.mutants import changed, swap
from tests.learning.assembly import assemble
from tests.probes import envs
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]
NETWORK = {"dense_units": 32, "mlp_layers": 1, "dense_act": "tanh", "layer_norm": False, "ortho_init": True}
PPO: dict[str, Any] = {
    "name": "ppo",
    "total_steps": 20_000,
    "rollout_steps": 64,
    "per_rank_batch_size": 128,
    "update_epochs": 4,
    "gamma": 0.95,
    "ent_coef": 0.01,
    "normalize_advantages": True,
    "anneal_lr": True,
    "max_grad_norm": 0.5,
    "encoder": {"mlp_layers": 0},
    "actor": NETWORK,
    "critic": NETWORK,
    "optimizer": {"name": "adam", "lr": 5e-3, "eps": 1e-5},
}
RECURRENT = {key: value for key, value in PPO.items() if key != "per_rank_batch_size"} | {
    "name": "ppo_recurrent",
    "per_rank_sequence_length": 16,
    "per_rank_num_batches": 4,
}


def recall(algo: dict[str, Any], seed: int = 0) -> float:
    """Return the mean of the last 200 training episodes."""
    training = assemble(f"known/{envs.Recall.__name__}-v0", algo, seed=seed, num_envs=8)
    return float(np.mean([e.ret for e in training.run(algo["total_steps"]).episodes[-200:]]))


def with_cell(cell: str) -> dict[str, Any]:
    return RECURRENT | {"rnn": {"cell": cell, "lstm": {"hidden_size": 16}}}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=soak) for seed in (0, 2))])
def test_ppo_recurrent_recalls_cue(cell: str, seed: int) -> None:
    assert recall(with_cell(cell), seed) > 0.8


@soak
def test_ppo_without_memory_does_not_recall_cue() -> None:
    assert abs(recall(PPO)) < 0.4


@pytest.mark.parametrize(
    ("function", "change"),
    [
        pytest.param("Cell._step", swap("A.masked_fill(B, 0)", "0 * A"), id="nothing is carried"),
        pytest.param(
            "ppo_recurrent.Learner.draw",
            swap("cut[A].transpose(2, 3)", "cut[A]"),
            marks=soak,
            id="environments before time",
        ),
    ],
)
def test_ppo_recurrent_mutant_does_not_recall_cue(function: str, change: Any) -> None:
    with changed(function, change):
        assert abs(recall(with_cell("lstm"))) < 0.4
