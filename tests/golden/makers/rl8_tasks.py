"""Write golden values of rl8's tasks: results of its dummies, and of the environments in its examples.

    rl8_tasks.npz  for every task: states and actions, and the next states, observations and rewards in float32; and
                   quantiles of the observations after a reset

The examples are not part of rl8's package. The argument is a checkout of theOGognf/rl8:

    TORCH_COMPILE_DISABLE=1 python -m tests.golden.makers.rl8_tasks CHECKOUT
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import torch
from rl8.env import ContinuousDummyEnv, DiscreteDummyEnv

from tests.golden.makers.files import write_arrays

COUNT, STARTS = 400, 4_000
SPREADS = {  # task -> largest absolute value of each number of a state
    "cartpole": [2.0, 3.0, 3.0, 3.0],
    "mountain_car": [1.3, 0.07],
    "pendulum": [9.0, 8.0],
    "discrete_dummy": [100.0],
    "continuous_dummy": [100.0],
}
CONTINUOUS = ("pendulum", "continuous_dummy")


def create(name: str, count: int) -> Any:
    if name.endswith("dummy"):
        return (DiscreteDummyEnv if name.startswith("d") else ContinuousDummyEnv)(count)
    classes = {"cartpole": "CartPole", "mountain_car": "MountainCar", "pendulum": "Pendulum"}
    return getattr(importlib.import_module(f"examples.{name}.env"), classes[name])(count)


def play(name: str) -> dict[str, np.ndarray]:
    """Return the results of one step from random states."""
    rng, env = np.random.default_rng(0), create(name, COUNT)
    env.reset()
    states = (rng.uniform(-1, 1, (COUNT, len(SPREADS[name]))) * SPREADS[name]).astype(np.float32)
    shape = (COUNT, 1)
    discrete = rng.integers(2 if name == "discrete_dummy" else 3, size=shape)
    action = rng.normal(0, 2, shape).astype(np.float32) if name in CONTINUOUS else discrete
    rows = torch.tensor(states)
    env.state = rows.clone() if name.endswith("dummy") else rows.T.clone()  # rl8's examples put copies last
    result = env.step(torch.tensor(action))
    after = env.state if name.endswith("dummy") else env.state.T
    found = {"state": states, "action": action, "next": after.numpy()}
    found |= {"obs": result["obs"].numpy(), "reward": result["rewards"].numpy()}
    return {f"{name}/{key}": np.asarray(value) for key, value in found.items()}


def start(name: str) -> dict[str, np.ndarray]:
    """Return quantiles of the first observations."""
    obs = create(name, STARTS).reset().numpy()
    return {f"{name}/start": np.quantile(obs, np.linspace(0.05, 0.95, 19), axis=0)}


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    torch.manual_seed(0)
    write_arrays("rl8_tasks", {k: v for name in SPREADS for k, v in {**play(name), **start(name)}.items()})
