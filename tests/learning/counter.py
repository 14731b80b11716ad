"""Episodes of ten rows that count, and what a world model makes of them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.dreamer_learner import sequence_of
from rlcore.functional.noise import Noise
from rlcore.nn.rssm import State
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Steps
from tests.learning.assembly import context

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


def numbers(t: np.ndarray) -> np.ndarray:
    """Which row of the episode it is, one-hot, three wide."""
    return 3 * np.eye(EPISODE, dtype=np.float32)[t]


def learn_to_count(algorithm: ModuleType, settings: dict[str, Any]) -> None:
    """Three hundred gradient steps of a Dreamer on vectors that count, and what it has to know behind them.

    Args:
        algorithm: module of its mathematics.
        settings: of it, with a head for episodes' ends.

    Raises:
        AssertionError: rewards are off by 5 % of their variance, ends are not known, or vectors imagined up to five
            steps on within an episode are not better by far than the mean of all.
    """
    rng, rows = np.random.default_rng(0), {"per_rank_batch_size": COUNT, "per_rank_sequence_length": LENGTH}
    action = ActionSpec("Discrete", (), "int64", (2,), (0,))
    spec = EnvSpec("Counter-v0", {"state": ArraySpec((EPISODE,), "float32")}, action)
    learner = algorithm.build(context(settings | rows, spec, 1))[0]
    for _ in range(300):
        learner.update(sequences(rng, "state", numbers), rng)
    world, batch = learner.agent.world, sequences(np.random.default_rng(1), "state", numbers)
    with torch.no_grad():
        states, _ = observe(learner, batch, LENGTH)
        error = (world.predict_reward(states.feat) - batch.steps.reward).square().mean()
        assert error < 0.05 * batch.steps.reward.var()
        ends = batch.steps.terminated
        assert ((world.predict_continue(states.feat) < 0) == ends).float().mean() > 0.95
        made, within = continue_open_loop(learner, batch, "state")
        truth, mean = batch.steps.obs["state"][5:10], batch.steps.obs["state"].mean((0, 1))
        guess, blind = ((p - truth).square().sum(-1)[within].mean() for p in (made, mean))
        assert guess < 0.5 * blind
