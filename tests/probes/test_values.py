"""Values that PPO must learn, and that mutants miss: collector, loop and learner together.

The comments give the errors of the correct code and of each mutant for the seeds 0 to 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.golden.test_ppo_golden import MUTANTS
from tests.learning.assembly import assemble
from tests.probes import envs  # noqa: F401  registers the environments
from tests.soaking import always, heavy

pytestmark = heavy

TABLE = {  # a linear critic over a one-hot observation is a table of values
    "name": "ppo",
    "rollout_steps": 32,
    "per_rank_batch_size": 64,
    "update_epochs": 4,
    "gamma": 0.9,
    "anneal_lr": True,
    "encoder": {"mlp_layers": 0},
    "actor": {"mlp_layers": 0},
    "critic": {"mlp_layers": 0},
}


def values(env_id: str, obs: Any, lr: float, total_steps: int, seed: int = 0) -> np.ndarray:
    """Return the value of every observation in `obs` after training."""
    algo = TABLE | {"total_steps": total_steps, "optimizer": {"lr": lr}}
    training = assemble(env_id, algo, num_envs=4, seed=seed).run(total_steps)
    agent = training.learner.agent
    with torch.no_grad():
        return agent({"state": torch.as_tensor(obs)})[1].numpy()


def endless(seed: int = 0) -> float:
    """Return the distance of V from 1/(1-0.9) = 10."""
    return float(np.abs(values("known/Endless-v0", [[1.0]], 0.3, 2_000, seed) - 10).max())


def countdown(seed: int = 0) -> float:
    """Return the largest distance of V from (1-0.9^k)/0.1 with k = 5, 4, 3, 2, 1 remaining steps."""
    return float(np.abs(values("known/Countdown-v0", range(5), 0.1, 2_000, seed) - [4.0951, 3.439, 2.71, 1.9, 1]).max())


def windfall(seed: int = 0) -> float:
    """Return the largest distance of V from 100 at the start and 0 after it."""
    return float(np.abs(values("known/Windfall-v0", [0, 1], 2.0, 4_000, seed) - [100, 0]).max())


Probe = Callable[[int], float]
TOLERANCES: dict[Probe, float] = {  # the right code stays below a fifth of these
    endless: 0.05,  # right: 0.000
    countdown: 0.03,  # right: 0.002 to 0.005
    windfall: 1.0,  # right: 0.000
}
MISTAKES = {  # names of mutants of PPO, with the error of the value
    "truncation as termination": endless,  # 5.4 to 5.6
    "reset rows counted": endless,  # 0.25: the reset brings no reward
    "termination as truncation": countdown,  # 1.9 to 2.3
    "termination one row late": countdown,  # 0.06 to 0.08
    "trace not cut at an episode's end": windfall,  # 171: rewards of the next episode flow into the last
    "reward one row late": windfall,  # 186 to 188
}


@always
@pytest.mark.parametrize("probe", TOLERANCES, ids=lambda probe: probe.__name__)
def test_ppo_learns_known_values(probe: Probe) -> None:
    assert probe(0) < TOLERANCES[probe]


@pytest.mark.parametrize("name", MISTAKES)
def test_mutant_misses_known_values(name: str) -> None:
    probe = MISTAKES[name]
    with MUTANTS[name].applied():
        assert probe(0) > TOLERANCES[probe]
