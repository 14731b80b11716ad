"""Waits that follow the work of the tests' processes, not the clock: on a loaded machine they last longer.

A wait gives up after a number of seconds in which none of these processes ran or wanted to. An endless process is
ended by a limit that no test comes near.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

SESSION = "TESTS_SHARED"  # tests/conftest.py
LIMIT = 1800.0  # maximum seconds of any wait
SHARE = 0.1  # of a processor: an idle server uses less
BUSY = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)  # runs, or wants to


class Patience:
    """Counts the seconds in which the processes started by tests were idle.

    Args:
        idle: idle seconds after which to give up.
        limit: seconds by the clock after which to give up in any case.
    """

    def __init__(self, idle: float, limit: float = LIMIT) -> None:
        self.idle, self.limit = idle, limit
        self._idle, self._began = 0.0, time.monotonic()
        self._looked, self._spent = self._began, _look()[0]

    @property
    def over(self) -> bool:
        """Return whether to give up; looks at the processes about every second."""
        now = time.monotonic()
        if now - self._looked >= min(1.0, self.idle / 4):
            spent, busy = _look()
            passed = now - self._looked
            if not busy and sum(spent.values()) - sum(self._spent.get(pid, 0.0) for pid in spent) < SHARE * passed:
                self._idle += passed
            self._looked, self._spent = now, spent
        return self._idle >= self.idle or now - self._began >= self.limit


def _look() -> tuple[dict[int, float], bool]:
    """Return processor seconds of all living processes started by tests; and whether one runs or wants to."""
    spent, busy, me, session = {}, False, os.getpid(), os.environ.get(SESSION)
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            # Servers of `make up` are no children; they are found by a variable that processes of a session inherit.
            if process.pid in below or (process.pid != me and session and process.environ().get(SESSION) == session):
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
                busy = busy or process.status() in BUSY
    return spent, busy


def wait_for(condition: Callable[[], Any], what: str, idle: float = 120.0, every: float = 0.01) -> Any:
    """Wait until a condition is true and return its value; raise AssertionError if no process works any more."""
    patience = Patience(idle)
    while not (found := condition()):
        assert not patience.over, f"{what} did not come, and no process has done anything for {idle:g} s"
        time.sleep(every)
    return found


def output_of(process: subprocess.Popen[Any], idle: float = 120.0) -> tuple[Any, Any]:
    """Read stdout and stderr of a process until it ends."""
    patience = Patience(idle)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1.0)
        assert not patience.over, f"{process.args} does not end, and no process has done anything for {idle:g} s"


def run_command(command: Sequence[Any], check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run `subprocess.run` with the patience of these waits, and capture the output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes | options)
    try:
        done = subprocess.CompletedProcess(command, 0, *output_of(process))
    except BaseException:
        process.kill()
        process.wait()
        raise
    done.returncode = process.returncode
    if check:
        done.check_returncode()
    return done
