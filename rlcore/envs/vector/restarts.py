"""Limit on the restarts of a failing environment (`env.restart_on_exception`)."""

from __future__ import annotations

import time

from rlcore.config.groups import RestartConfig


class Restarts:
    """Counter of an environment's failures in the last `env.restart_on_exception.window` seconds."""

    def __init__(self, config: RestartConfig) -> None:
        self.attempts, self.window, self.wait = config.attempts, config.window, config.wait
        self._failures: list[float] = []

    def allow(self) -> bool:
        """Count a failure that happened now; return True if the environment may be restarted."""
        now = time.monotonic()
        self._failures = [*(then for then in self._failures if now - then < self.window), now]
        return len(self._failures) <= self.attempts

    def pause(self) -> None:
        """Wait `env.restart_on_exception.wait` seconds before the environment is restarted."""
        time.sleep(self.wait)

    def seconds(self, limit: float) -> float:
        """Return the maximum time of all restarts during one reset, in seconds.

        `limit` is the time limit in seconds for the construction and the first reset of one environment.
        """
        return self.attempts * (self.wait + limit)

    def explain_giving_up(self) -> str:
        """Return the end of the error message for a failure after which no restart is allowed.

        The text is "" if the config disables restarts.
        """
        if not self.attempts:
            return ""
        return f" (failure {self.attempts + 1} within {self.window:g} s: env.restart_on_exception.attempts is used up)"
