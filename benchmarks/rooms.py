"""Three rooms in a row, and the question whether an ensemble disagrees more about cells that were never visited."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.algorithms.dreamer.plan2explore.ensemble import disagreement
from rlcore.functional.noise import Noise

ROWS, COLUMNS, STEPS = 5, 15, 60
WALLS = {(row, column) for column, door in ((5, 1), (10, 3)) for row in range(ROWS) if row != door}
CELLS = [(row, column) for row in range(ROWS) for column in range(COLUMNS) if (row, column) not in WALLS]
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


def show(cell: tuple[int, int]) -> np.ndarray:
    """Return the observation of a cell: its row and its column, one-hot each."""
    return np.concatenate([np.eye(ROWS)[cell[0]], np.eye(COLUMNS)[cell[1]]]).astype(np.float32)


class Rooms(gym.Env[np.ndarray, np.int64]):
    """Three rooms of five rows, connected by doors of one cell. Episodes start in the first room, without reward."""

    observation_space = spaces.Box(0, 1, (ROWS + COLUMNS,), np.float32)
    action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.count = (2, 0), 0
        return show(self.cell), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        there = tuple(np.add(self.cell, MOVES[action]).tolist())
        self.cell, self.count = there if there in CELLS else self.cell, self.count + 1
        return show(self.cell), 0.0, False, self.count == STEPS, {}


def disagreement_of_cells(learner: Any, samples: int = 64) -> np.ndarray:
    """Return the disagreement about the outcome of a step from each cell, [cells].

    It is a mean over the actions and over `samples` model states, which are drawn from the posterior of the cell's
    observation. With a single sample, noise hides the differences between cells: on Dreamer V3 (seed 0), the AUROC is
    0.55 with one sample, 0.70 with 16, and 0.74 with 64.
    """
    world, count, noise = learner.agent.world, len(CELLS), Noise(0, "probe")
    obs = {"state": torch.from_numpy(np.stack([show(cell) for cell in CELLS]))}
    first, each = torch.ones(count, dtype=torch.bool), list[Tensor]()
    with torch.no_grad():
        for _ in range(samples):
            carry = learner.agent.act(learner.agent.initial(count), obs, first, noise)[0]
            feat = torch.cat([carry["stoch"], carry["deter"]], -1)
            for action in torch.eye(world.rssm.actions):
                each.append(disagreement(learner.ensembles(feat, action.expand(count, -1))))
    return torch.stack(each).mean(0).numpy()


def area_under_curve(values: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive sample has a larger value than a negative one (AUROC); ties count half."""
    pairs = values[positive][:, None] - values[~positive][None]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def smallest_loss(learner: Any) -> float:
    """Return the loss of an ensemble without errors; that of a normal distribution contains a constant."""
    targets = torch.zeros(1, learner.target_size())
    return len(learner.ensembles.members) * float(type(learner).distance(targets, targets, 1))


def explore_rooms(training: Any, steps: int) -> tuple[float, list[float]]:
    """Train on random actions.

    Args:
        training: trainer of Plan2Explore in `Rooms`.
        steps: number of policy steps.

    Returns:
        AUROC of unseen cells, and the loss of the ensemble in each gradient step, less `smallest_loss`.
    """
    training.plan = dataclasses.replace(training.plan, random_steps=10**9)
    losses, least = list[float](), smallest_loss(training.learner)
    while training.policy_steps < steps:
        training.collect()
        losses += [float(metrics["Loss/ensemble_loss"]) - least for metrics in training.take_gradient_steps()]
    rows = training.buffer.copy_rows().obs["state"].flatten(0, -2).numpy()
    seen = {(int(row[:ROWS].argmax()), int(row[ROWS:].argmax())) for row in rows}
    unseen = np.array([cell not in seen for cell in CELLS])
    return area_under_curve(disagreement_of_cells(training.learner), unseen), losses
