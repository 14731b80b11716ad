"""Episodes of ten rows with counting observations, and the predictions of a world model for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import segment_of
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Trajectory
from tests.learning.assembly import context

LENGTH, COUNT, EPISODE = 16, 8, 10


def sequences(rng: np.random.Generator, key: str, show: Callable[[np.ndarray], np.ndarray]) -> Batch:
    """Return rows of episodes of ten with observations by `show`; the reward t / 10 arrives with row t."""
    t = (rng.integers(EPISODE, size=COUNT) + np.arange(LENGTH)[:, None]) % EPISODE  # [L, N]
    last = torch.from_numpy(t == EPISODE - 1)
    rows: dict[str, Any] = {"action": torch.from_numpy(rng.integers(2, size=(LENGTH, COUNT, 1)))}
    rows |= {"reward": torch.from_numpy(t / 10).float(), "terminated": last, "truncated": torch.zeros_like(last)}
    steps = Trajectory({key: torch.from_numpy(show(t))}, is_first=torch.from_numpy(t == 0), **rows)
    return Batch(steps, steps, 0)


def observe(learner: Any, batch: Batch, rows: int) -> tuple[ModelState, Tensor]:
    """Return the states of the first rows, and the actions before each row."""
    sequence, world = segment_of(batch.steps, learner.agent.actor), learner.agent.world
    noise = world.rssm.noise(Noise(3, "probe"), rows, COUNT)
    seen = world.encoder.preprocess({key: value[:rows] for key, value in sequence.obs.items()}, 2)
    return world.observe(seen, sequence.before[:rows], sequence.is_first[:rows], noise).state, sequence.before


def continue_open_loop(learner: Any, batch: Batch, key: str) -> tuple[Tensor, Tensor]:
    """Return rows 5 to 9 imagined after rows 0 to 4, [5, N, ...], and which are of the same episode."""
    state, before = observe(learner, batch, 5)
    state, world, predictions = ModelState(*(part[4] for part in state)), learner.agent.world, list[Tensor]()
    for t in range(5, 10):
        state = world.rssm.img_step(state, before[t], world.rssm.noise(Noise(t, "probe"), COUNT))
        predictions.append(world.decoder(state.feat.unsqueeze(0))[key][0])
    return torch.stack(predictions), ~batch.steps.is_first[5:10].cumsum(0).bool()


def numbers(t: np.ndarray) -> np.ndarray:
    """Return rows t of an episode as vectors: one-hot, three wide."""
    return 3 * np.eye(EPISODE, dtype=np.float32)[t]


def pictures(t: np.ndarray, side: int) -> np.ndarray:
    """Return rows t of an episode as images: a bar that moves to the right."""
    column = np.arange(side) * EPISODE // side == t[..., None]  # [L, N, side]
    return np.broadcast_to(255 * column[:, :, None, :, None].astype(np.uint8), (LENGTH, COUNT, side, side, 1)).copy()


def learn_to_count(algorithm: ModuleType, settings: dict[str, Any], seed: int = 0, *, side: int = 0) -> None:
    """Train a Dreamer for three hundred gradient steps on counting rows, and check its predictions.

    Args:
        algorithm: module of the algorithm.
        settings: its config, with a continue head.
        seed: for weights and rows.
        side: size of the images; 0: rows are vectors.

    Raises:
        AssertionError: the reward error is above 5 % of the variance, ends are not predicted, or rows imagined up to
            five steps ahead within an episode are not much better than the mean of all.
    """
    rng, rows = np.random.default_rng(seed), {"per_rank_batch_size": COUNT, "per_rank_sequence_length": LENGTH}
    action = ActionSpec("Discrete", (), "int64", (2,), (0,))
    key, show = ("rgb", partial(pictures, side=side)) if side else ("state", numbers)
    shown = ArraySpec((side, side, 1), "uint8", kind="image") if side else ArraySpec((EPISODE,), "float32")
    spec = EnvSpec("Counter-v0", {key: shown}, action)
    learner = algorithm.build(context(settings | rows, spec, 1, seed=seed))[0]
    for _ in range(300):
        learner.update(sequences(rng, key, show), rng)
    world, batch = learner.agent.world, sequences(np.random.default_rng(100 + seed), key, show)
    with torch.no_grad():
        states, _ = observe(learner, batch, LENGTH)
        error = (world.predict_reward(states.feat) - batch.steps.reward).square().mean()
        assert error < 0.05 * batch.steps.reward.var()
        ends = batch.steps.terminated
        assert ((world.predict_continue(states.feat) < 0) == ends).float().mean() > 0.95
        predictions, within = continue_open_loop(learner, batch, key)
        seen = world.encoder.preprocess(batch.steps.obs, 2)[key]
        truth, mean = seen[5:10], seen.mean((0, 1))
        guess, blind = ((p - truth).square().flatten(2).sum(-1)[within].mean() for p in (predictions, mean))
        assert guess < 0.5 * blind
