"""Complete episodes on fixed seeds, for evaluations, the random baseline and comparisons of models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from rlcore.data.history import with_history
from rlcore.data.staging import answer, tensor
from rlcore.envs.masks import refuse_without_action
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.protocols import Agent, VectorEnv
from rlcore.types import Rows, TimeStep

OnStep = Callable[[TimeStep, Rows], None]
OnProgress = Callable[[int, int], None]


def part_of(on_progress: OnProgress, part: int, parts: int) -> OnProgress:
    """Create the progress callback for one of several evaluations with the same number of episodes.

    It calls `on_progress` with the number of finished episodes and the number of all episodes of all evaluations.

    Args:
        on_progress: callback for all evaluations together.
        part: index of the evaluation, from 0; the evaluations run one after the other.
        parts: number of evaluations.

    Returns:
        Callback that takes the number of finished episodes, and the number of all episodes, of this evaluation.
    """
    return lambda done, total: on_progress(part * total + done, parts * total)


@dataclass(frozen=True)
class EvalResult:
    """Results of N episodes, ordered by episode.

    Attributes:
        returns: undiscounted return of each episode, in the environment's unit.
        lengths: length of each episode, in actions.
        cut: number of episodes that were truncated by the step limit of evaluations, not by the environment.
        info: for each episode, name -> mean or last value of the numbers that `env.info_keys` selects in `info`.
    """

    returns: list[float]
    lengths: list[int]
    cut: int = 0
    info: Sequence[Mapping[str, float]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the results as a dict with the keys mean, std, ci95, episodes, returns, mean_length and cut.

        std is the unbiased standard deviation; ci95 is the 95 % confidence interval of the mean (Student's t). If an
        episode has numbers in `info`, the key info has, for each name, mean, std, ci95, episodes and values of the
        episodes that have it.
        """
        found = _spread(self.returns) | {
            "returns": self.returns,
            "mean_length": statistics.fmean(self.lengths),
            "cut": self.cut,
        }
        names = dict.fromkeys(name for episode in self.info for name in episode)
        columns = {name: [episode[name] for episode in self.info if name in episode] for name in names}
        info = {name: _spread(values) | {"values": values} for name, values in columns.items()}
        return found | {"info": info} if info else found


def _spread(values: list[float]) -> dict[str, Any]:
    count = len(values)
    mean = statistics.fmean(values)
    std = statistics.stdev(values) if count > 1 else 0.0
    half = student_t_975(count - 1) * std / math.sqrt(count) if count > 1 else 0.0
    return {"mean": mean, "std": std, "ci95": [mean - half, mean + half], "episodes": count}


class EpisodeRecorder:
    """Recorder of the results of an evaluation's episodes, which can finish in any order.

    Args:
        episodes: N; number of episodes of the evaluation.
    """

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        # episode -> return, length, True if the limit truncated it, and numbers from info
        self.done: dict[int, tuple[float, int, bool, Mapping[str, float]]] = {}
        self.arrival: TimeStep | None = None  # the newest time step, which has no action yet
        self._first = 0

    @property
    def first(self) -> int:
        """Largest n for which all episodes 0 to n - 1 have ended.

        Use these episodes to estimate the mean return during an evaluation. The mean of all finished episodes would be
        biased, because short episodes end first.
        """
        while self._first in self.done:
            self._first += 1
        return self._first

    def result(self, count: int | None = None) -> EvalResult:
        """Return the result of the episodes 0 to `count` - 1, which must have ended; None: of all episodes."""
        ordered = [self.done[i] for i in range(self.episodes if count is None else count)]
        returns, lengths, cut, info = zip(*ordered, strict=True)
        return EvalResult(list(returns), list(lengths), sum(cut), info)


def student_t_975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution with `freedom` degrees of freedom.

    It is exact for 1 and 2 degrees of freedom; otherwise it is computed by algorithm 396 of CACM (Hill 1970).
    """
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
    needs_allowed_action: bool = False,
    device: torch.device | str = "cpu",
    autocast: Any = nullcontext,
    on_step: OnStep | None = None,
) -> Iterator[EpisodeRecorder]:
    """Run N complete episodes on B environments, and yield after every step.

    Environment k runs the episodes k, k+B, k+2B, … This assignment is fixed in advance. If every environment simply
    continued until N episodes have ended, the results would be biased towards short episodes.

    Args:
        agent: the agent.
        envs: new environments that were not reset yet; the environment seed of an episode depends on its number.
        episodes: N; number of episodes.
        rng: noise for sampled actions; None if `greedy` is True.
        greedy: True: the most likely actions; False: samples.
        limit: number of actions after which `envs` truncate an episode; these episodes are counted in `cut`.
        needs_allowed_action: raise EnvironmentFault if action masks allow no action.
        device: device of the agent.
        autocast: function that returns a context manager for calls of the agent (mixed precision).
        on_step: called with every time step and the action that the agent chose after it, in the environment's format.

    Yields:
        An object with the results of all episodes that have ended. It is always the same object, updated by each step.
    """
    count, record = envs.num_envs, EpisodeRecorder(episodes)
    left = [len(range(k, episodes, count)) for k in range(count)]
    played = [0] * count
    agent = with_history(agent, envs.spec)
    time_step, carry = envs.reset(), map_leaves(lambda tensor: tensor.to(device), agent.initial(count))
    while any(left):
        if needs_allowed_action:
            refuse_without_action(envs.spec, time_step)
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
                record.done[index + played[index] * count] = (episode.ret, episode.length, bool(cut), episode.info)
                played[index] += 1
        yield record
