"""Episodes of ten rows that count, and what a world model makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.dreamer_learner import sequence_of
from rlcore.functional.noise import Noise
from rlcore.nn.rssm import State
from rlcore.types import Batch, Steps

LENGTH, COUNT, EPISODE = 16, 8, 10


def sequences(rng: np.random.Generator, key: str, show: Callable[[np.ndarray], np.ndarray]) -> Batch:
    """Rows of episodes of ten, of which `show` makes the observations; reward t / 10 arrives with row t."""
    t = (rng.integers(EPISODE, size=COUNT) + np.arange(LENGTH)[:, None]) % EPISODE  # [L, N]
    last = torch.from_numpy(t == EPISODE - 1)
    rows: dict[str, Any] = {"action": torch.from_numpy(rng.integers(2, size=(LENGTH, COUNT, 1)))}
    rows |= {"reward": torch.from_numpy(t / 10).float(), "terminated": last, "truncated": torch.zeros_like(last)}
    steps = Steps({key: torch.from_numpy(show(t))}, is_first=torch.from_numpy(t == 0), **rows)
    return Batch(steps, steps, 0)


def observe(learner: Any, batch: Batch, rows: int) -> tuple[State, Tensor]:
    """States of the first rows, and the actions before each row."""
    sequence, world = sequence_of(batch.steps, learner.agent.actor), learner.agent.world
    noise = world.rssm.noise(Noise(3, "probe"), rows, COUNT)
    seen = world.encoder.see({key: value[:rows] for key, value in sequence.obs.items()}, 2)
    return world.observe(seen, sequence.before[:rows], sequence.is_first[:rows], noise).state, sequence.before


def continue_open_loop(learner: Any, batch: Batch, key: str) -> tuple[Tensor, Tensor]:
    """What is made of rows 5 to 9 when 0 to 4 were seen, [5, N, ...], and which of them are of the same episode."""
    state, before = observe(learner, batch, 5)
    state, world, made = State(*(part[4] for part in state)), learner.agent.world, list[Tensor]()
    for t in range(5, 10):
        state = world.rssm.imagine(state, before[t], world.rssm.noise(Noise(t, "probe"), COUNT))
        made.append(world.decoder(state.feat.unsqueeze(0))[key][0])
    return torch.stack(made), ~batch.steps.is_first[5:10].cumsum(0).bool()
