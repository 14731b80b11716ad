"""Progress of a run as it is shown and logged: recent returns, elapsed time and expected remaining time."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rlcore.train.metrics import Stopwatch
from rlcore.train.trainer import Trainer

log = logging.getLogger(__name__)
RECENT = 100  # number of episodes whose mean return is shown


class RunProgress:
    """Progress of a training.

    Args:
        training: the training.
    """

    def __init__(self, training: Trainer) -> None:
        self.training = training
        self.stopwatch = Stopwatch()  # includes the training in earlier processes of the run
        self._recent: list[float] = []  # returns of the newest episodes
        self._slow_first = True  # the first gradient step includes setup or compilation
        self._pace_logged = False

    def add_returns(self, returns: list[float]) -> None:
        """Add the returns of newly finished episodes."""
        self._recent = (self._recent + returns)[-RECENT:]

    def facts(self) -> dict[str, Any]:
        """Return policy_steps, total_steps, updates, return (mean of recent episodes) and elapsed (seconds)."""
        training, recent = self.training, self._recent
        return {
            "policy_steps": training.policy_steps,
            "total_steps": training.end,
            "updates": training.learner.updates,
            "return": sum(recent) / len(recent) if recent else None,
            "elapsed": self.stopwatch.wall,
        }

    def moment(self) -> dict[str, int]:
        """Return policy_steps and env_steps, for an event."""
        return {"policy_steps": self.training.policy_steps, "env_steps": self.training.env_steps}

    def clock(self) -> dict[str, float]:
        """Return the seconds of training so far, {wall_s, cpu_s}, for an event; {} if `metric.disable_timer` is set."""
        seconds = {"wall_s": self.stopwatch.wall, "cpu_s": self.stopwatch.cpu}
        off = self.training.config.metric.disable_timer
        return {} if off else {name: round(value, 3) for name, value in seconds.items()}

    def log_pace(self, updates: int, seconds: float) -> None:
        """Log once how long the remaining gradient steps will take.

        The duration of a gradient step is measured in the second iteration with gradient steps, because the first one
        may include compilation.

        Args:
            updates: number of gradient steps of an iteration.
            seconds: time that they took.
        """
        training = self.training
        known = updates and not self._pace_logged and training.end is not None
        planned = training.buffer.count_batches(training.budget) if known else None
        if planned is None or self._slow_first:
            self._slow_first = self._slow_first and not updates
            return
        self._pace_logged, left = True, planned - training.learner.updates
        if left > 0:
            each = seconds / updates
            log.info(
                "a gradient step takes %.3g ms; the remaining %s take about %s",
                each * 1e3,
                f"{left:,}",
                spell_duration(each * left),
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state, in JSON values."""
        return {"recent": self._recent, "wall_s": self.stopwatch.wall, "cpu_s": self.stopwatch.cpu}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.stopwatch = Stopwatch(state["wall_s"], state["cpu_s"])
        self._recent = [float(ret) for ret in state["recent"]]


def spell_duration(seconds: float) -> str:
    """Return a duration as text in a suitable unit, such as "45 s", "12 min", "3.5 h" or "4.0 days"."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{1 if seconds < 10 * length else 0}f} {unit}"
    return f"{seconds:.0f} s"
