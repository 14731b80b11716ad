"""Complete episodes on fixed seeds, for evaluations, the random baseline and comparisons of models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from rlcore.data.history import with_history
from rlcore.data.staging import answer, tensor
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.protocols import Agent, VectorEnv
from rlcore.types import Rows, TimeStep

OnStep = Callable[[TimeStep, Rows], None]
OnProgress = Callable[[int, int], None]


def part_of(on_progress: OnProgress, part: int, parts: int) -> OnProgress:
    """Return a progress callback for number `part` (from 0) of several equally long evaluations."""
    return lambda done, total: on_progress(part * total + done, parts * total)


@dataclass(frozen=True)
class EvalResult:
    """Results of N episodes, ordered by episode.

    Attributes:
        returns: undiscounted, in the environment's unit.
        lengths: in actions.
        cut: number of episodes that the limit of the evaluation truncated.
    """

    returns: list[float]
    lengths: list[int]
    cut: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return mean, std (unbiased), ci95 (Student's t interval of the mean), episodes, returns, mean_length, cut."""
        count = len(self.returns)
        mean = statistics.fmean(self.returns)
        std = statistics.stdev(self.returns) if count > 1 else 0.0
        half = student_t_975(count - 1) * std / math.sqrt(count) if count > 1 else 0.0
        return {
            "mean": mean,
            "std": std,
            "ci95": [mean - half, mean + half],
            "episodes": count,
            "returns": self.returns,
            "mean_length": statistics.fmean(self.lengths),
            "cut": self.cut,
        }


class EpisodeRecorder:
    """Record of the finished episodes of an evaluation, in any order.

    Args:
        episodes: N.
    """

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        self.done: dict[int, tuple[float, int, bool]] = {}  # episode -> return, length, whether the limit ended it
        self.arrival: TimeStep | None = None  # the newest time step, which has no action yet
        self._first = 0

    @property
    def first(self) -> int:
        """Number n such that episodes 0..n-1 have ended; unlike all finished episodes, they are not biased to short."""
        while self._first in self.done:
            self._first += 1
        return self._first

    def result(self, count: int | None = None) -> EvalResult:
        """Return the result of the first `count` episodes, by default of all."""
        ordered = [self.done[i] for i in range(self.episodes if count is None else count)]
        returns, lengths, cut = zip(*ordered, strict=True)
        return EvalResult(list(returns), list(lengths), sum(cut))


def student_t_975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom, else Hill (CACM 1970, 396)."""
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, n = statistics.NormalDist().inv_cdf(0.975), freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


@torch.no_grad()
def playing(
    agent: Agent,
    envs: VectorEnv,
    episodes: int,
    rng: Noise | None,
    *,
    greedy: bool,
    limit: int | None = None,
    device: torch.device | str = "cpu",
    autocast: Any = nullcontext,
    on_step: OnStep | None = None,
) -> Iterator[EpisodeRecorder]:
    """Run complete episodes on B environments.

    Environment k runs the episodes k, k+B, k+2B, … This assignment is fixed in advance, so that the results are not
    biased towards short episodes.

    Args:
        agent: the agent.
        envs: new environments, seeded by episode.
        episodes: N.
        rng: action noise; None if `greedy` is True.
        greedy: most likely actions instead of samples.
        limit: limit of actions set in the environments; episodes truncated by it are counted in `cut`.
        device: device of the agent.
        autocast: context manager for calls of the agent (mixed precision).
        on_step: called with every time step and the action chosen for it, in the environment's form.

    Yields:
        The same record after every step, until all episodes have ended.
    """
    count, record = envs.num_envs, EpisodeRecorder(episodes)
    left = [len(range(k, episodes, count)) for k in range(count)]
    played = [0] * count
    agent = with_history(agent, envs.spec)
    time_step, carry = envs.reset(), map_leaves(lambda tensor: tensor.to(device), agent.initial(count))
    while any(left):
        obs = {key: tensor(rows, device) for key, rows in time_step.obs.items()}
        with autocast():
            carry, action, _ = agent.act(carry, obs, tensor(time_step.is_first, device), rng, greedy)
        env_action = answer(agent.to_env(action), time_step)
        if on_step is not None:
            on_step(time_step, env_action)
        time_step = record.arrival = envs.step(env_action)
        for episode in envs.pop_episodes():
            index = episode.env_index
            if left[index]:
                left[index] -= 1
                cut = episode.length == limit and not time_step.terminated[index]
                record.done[index + played[index] * count] = (episode.ret, episode.length, bool(cut))
                played[index] += 1
        yield record
