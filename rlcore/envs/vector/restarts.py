"""Number of times a failing environment is built anew before its failure ends the run (`env.restart_on_exception`)."""

from __future__ import annotations

import time

from rlcore.config.groups import RestartConfig


class Restarts:
    """Failures of one environment, as its config counts them."""

    def __init__(self, config: RestartConfig) -> None:
        self.attempts, self.window, self.wait = config.attempts, config.window, config.wait
        self._failures: list[float] = []

    def allow(self) -> bool:
        """Count a failure that has just happened; whether it is answered by a restart."""
        now = time.monotonic()
        self._failures = [*(then for then in self._failures if now - then < self.window), now]
        return len(self._failures) <= self.attempts

    def pause(self) -> None:
        """Wait before the environment is built anew."""
        time.sleep(self.wait)

    def seconds(self, limit: float) -> float:
        """Longest time that all restarts of one reset take, where each of them may take `limit` seconds."""
        return self.attempts * (self.wait + limit)

    def explain_giving_up(self) -> str:
        """Words behind a failure that is not answered any more; "" where none ever is."""
        if not self.attempts:
            return ""
        return f" (failure {self.attempts + 1} within {self.window:g} s: env.restart_on_exception gives up)"
