"""Checks and aggregation of metrics between two log points, and the stopwatch of training time."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlcore.config.groups import REDUCTIONS, MetricConfig
from rlcore.config.info_keys import GAME, metric_names
from rlcore.config.stop import COMMON
from rlcore.config.values import nearest
from rlcore.envs.masks import NO_ACTION
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.system.training_clock import clock, wall
from rlcore.types import ALLOWED, Episode, Episodes, Metrics

log = logging.getLogger(__name__)

USUAL = {"Params/replay_ratio": "last"}  # default reductions; that of all other metrics is the mean
SURE = 20  # gradient steps after which every loss was logged; some policies are updated less often than the critics


class MetricsWindow:
    """Metrics since the last log point. Every `metric.log_every` policy steps, they are reduced to one log point.

    Args:
        config: the group `metric` of the config, with the interval of log points and the reductions (mean, max, ...).
        info_keys: value of `env.info_keys`.
    """

    def __init__(self, config: MetricConfig, info_keys: Sequence[str] = ()) -> None:
        self.config = config
        self._of_episodes = (*COMMON, *metric_names(info_keys))  # metrics that are not logged before an episode ends
        self.values: dict[str, list[Any]] = {}  # numbers and tensors []; tensors are read when a point is due
        self.start_steps = 0
        self.seconds = {"collect": 0.0, "train": 0.0}
        self.start_updates = 0
        self._warned = False
        self._known: set[str] = set()  # names of all metrics so far; some are not logged in every window

    def add(self, metrics: list[Metrics], episodes: Sequence[Episode]) -> None:
        """Add the metrics of one iteration.

        Args:
            metrics: a dict for each gradient step; values are numbers or tensors of shape [].
            episodes: episodes that ended in the iteration; their returns, lengths and values of
                `env.info_keys` are added as metrics.
        """
        for update in metrics:
            for name, value in update.items():
                self.values.setdefault(name, []).append(value)
        if ended := Episodes.of(episodes):
            self.values.setdefault("Rewards/rew_avg", []).extend(ended.ret)
            self.values.setdefault("Game/ep_len_avg", []).extend(map(float, ended.length))
            for name, numbers in ended.info.items():
                if known := [number for number in numbers if number is not None]:
                    self.values.setdefault(f"{GAME}{name}", []).extend(known)

    def due(self, policy_steps: int) -> bool:
        """Return True if a log point is due at `policy_steps`."""
        return policy_steps // self.config.log_every > self.start_steps // self.config.log_every

    def close(self, policy_steps: int, updates: int) -> Metrics:
        """Return the log point at `policy_steps`, after a total of `updates` gradient steps, and reset the window."""
        chosen = self.config.aggregator.metrics
        values = self.check_finite(policy_steps, updates)
        point = {
            name: REDUCTIONS[chosen.get(name, USUAL.get(name, "mean"))](numbers) for name, numbers in values.items()
        }
        self._known |= point.keys()
        if updates > self.start_updates and updates >= SURE:  # no updates while a replay buffer fills
            self._check(chosen, point)
        if not self.config.disable_timer:
            for phase, name, amount in (
                ("collect", "Time/sps_env_interaction", policy_steps - self.start_steps),
                ("train", "Time/sps_train", updates - self.start_updates),
            ):
                if self.seconds[phase] > 0:
                    point[name] = amount / self.seconds[phase]
        self.values, self.start_steps, self.start_updates = {}, policy_steps, updates
        self.seconds = {"collect": 0.0, "train": 0.0}
        return point

    def check_finite(self, policy_steps: int, updates: int) -> dict[str, list[float]]:
        """Return name -> all values since the last log point; raise a RunError if one of them is not finite.

        The error names the metrics with the earliest non-finite value and, if it can be determined, the gradient step.
        If the metric of action masks is not finite, because they allowed no action, an EnvironmentFault explains this.
        """
        values = self._numbers()
        broken = {
            name: next(i for i, value in enumerate(numbers) if not math.isfinite(value))
            for name, numbers in values.items()
            if not all(map(math.isfinite, numbers))
        }
        if broken:
            first = min(broken.values())
            named = {name: values[name][at] for name, at in broken.items() if at == first}
            if ALLOWED in named:
                raise EnvironmentFault(f"before policy step {policy_steps}: {NO_ACTION}")
            steps = updates - self.start_updates
            one_each = all(len(values[name]) == steps for name in named)  # else values do not match gradient steps
            since = f" at gradient step {self.start_updates + first + 1}" if one_each else ""
            raise RunError(f"not finite after {updates} updates and {policy_steps} policy steps: {named}{since}")
        return values

    def _numbers(self) -> dict[str, list[float]]:
        """Return name -> values as Python numbers. All tensors are copied from the device at once."""
        tensors = [value for values in self.values.values() for value in values if isinstance(value, Tensor)]
        read = iter(torch.stack([t.detach().float() for t in tensors]).tolist() if tensors else ())
        return {
            name: [next(read) if isinstance(value, Tensor) else float(value) for value in values]
            for name, values in self.values.items()
        }

    def _check(self, chosen: dict[str, Any], point: Metrics) -> None:
        expected = {*self._known, *self._of_episodes}
        missing = [name for name in chosen if name not in expected and not name.startswith("Rewards/")]
        if not missing or self._warned:
            return
        self._warned = True
        hints = [nearest(name, [*point, *self._of_episodes]).removeprefix("; ") for name in missing]
        names = [f"{name!r} ({hint})" if hint else repr(name) for name, hint in zip(missing, hints, strict=True)]
        sentence = f"metric.aggregator.metrics: this algorithm does not log {', '.join(names)}"
        if self.config.aggregator.raise_on_missing:
            raise UserError(sentence)
        log.warning(sentence)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the window, in JSON values."""
        return {
            "values": self._numbers(),
            "start_steps": self.start_steps,
            "start_updates": self.start_updates,
            "seconds": self.seconds,
            "known": sorted(self._known),
            "warned": self._warned,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.values, self.start_steps = state["values"], state["start_steps"]
        self.start_updates, self.seconds = state["start_updates"], state["seconds"]
        self._known, self._warned = set(state["known"]), state["warned"]


def check_metrics(metrics: Metrics) -> Metrics:
    """Return the argument unchanged; raise a RunError with the name of a metric that is not a single number.

    Only shapes are checked, not values, so that the check does not wait for computations on a GPU.
    """
    for name, value in metrics.items():
        shape = [*getattr(value, "shape", ())]
        if shape or not hasattr(value, "__float__"):
            what = f"a {type(value).__name__} of shape {shape}" if shape else repr(value)
            raise RunError(f"metric {name!r} is {what}; a metric must be a single number or a tensor of shape []")
    return metrics


class Stopwatch:
    """Stopwatch of wall and CPU seconds spent in training (inside `advance`), summed over resumes of a run.

    CPU seconds include those of environment processes and of other ranks.

    Args:
        wall: wall-clock seconds of training before the run was resumed in this process.
        cpu: CPU seconds of training before the run was resumed in this process.
    """

    def __init__(self, wall: float = 0.0, cpu: float = 0.0) -> None:
        self._wall, self._cpu = wall, cpu
        self._since: tuple[float, float] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager in which the stopwatch runs."""
        self._since = clock()
        try:
            yield
        finally:
            self._wall, self._cpu, self._since = self.wall, self.cpu, None

    @property
    def wall(self) -> float:
        """Wall-clock seconds of training so far."""
        return self._wall + (wall() - self._since[0] if self._since else 0.0)

    @property
    def cpu(self) -> float:
        """CPU seconds of training so far."""
        return self._cpu + (clock()[1] - self._since[1] if self._since else 0.0)
