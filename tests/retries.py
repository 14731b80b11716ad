"""Waits that follow what the tests' processes do, not the clock: on a loaded machine they last as long as it takes.

A wait gives up after so many seconds in which none of these processes ran, nor wanted to. What runs on for ever is
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
LIMIT = 1800.0  # seconds that anything may take, however busy it looks
SHARE = 0.1  # of a processor: less is what a server does that nobody asks for anything
BUSY = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)  # it runs, or wants to


class Patience:
    """Counts the seconds in which the processes that tests have started were idle.

    Args:
        idle: seconds of them after which there is nothing to be waited for.
        limit: seconds by the clock after which there is nothing either.
    """

    def __init__(self, idle: float, limit: float = LIMIT) -> None:
        self.idle, self.limit = idle, limit
        self._idle, self._began = 0.0, time.monotonic()
        self._looked, self._spent = self._began, _look()[0]

    @property
    def over(self) -> bool:
        """Whether to give up; looks at the processes about every second."""
        now = time.monotonic()
        if now - self._looked >= min(1.0, self.idle / 4):
            spent, busy = _look()
            passed = now - self._looked
            if not busy and sum(spent.values()) - sum(self._spent.get(pid, 0.0) for pid in spent) < SHARE * passed:
                self._idle += passed
            self._looked, self._spent = now, spent
        return self._idle >= self.idle or now - self._began >= self.limit


def _look() -> tuple[dict[int, float], bool]:
    """Processor seconds by process, of all that tests have started and that live; whether one runs or wants to."""
    spent, busy, me, session = {}, False, os.getpid(), os.environ.get(SESSION)
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            # Servers of `make up` are nobody's children; they are known by what all of a session inherit.
            if process.pid in below or (process.pid != me and session and process.environ().get(SESSION) == session):
                times = process.cpu_times()
                spent[process.pid] = times.user + times.system
                busy = busy or process.status() in BUSY
    return spent, busy


def wait_for(condition: Callable[[], Any], what: str, idle: float = 120.0, every: float = 0.01) -> Any:
    """Wait until a condition is true, and give its value; an AssertionError where nothing works towards it any more."""
    patience = Patience(idle)
    while not (found := condition()):
        assert not patience.over, f"{what} did not come, and no process has done anything for {idle:g} s"
        time.sleep(every)
    return found


def output_of(process: subprocess.Popen[Any], idle: float = 120.0) -> tuple[Any, Any]:
    """Read what a process says on stdout and stderr until it ends."""
    patience = Patience(idle)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1.0)
        assert not patience.over, f"{process.args} does not end, and no process has done anything for {idle:g} s"


def run_command(command: Sequence[Any], check: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with the patience of these waits, and the output captured."""
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
