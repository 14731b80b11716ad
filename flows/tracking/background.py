"""The mirror of a run in a process of its own while it is trained: training never waits for MLflow.

One process a run, asked again and again, because MLflow takes seconds to import. It ends with the command; where it
failed, another takes its place at the next request.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from contextlib import suppress

from flows.process.signals import before_leaving, interrupted, time_left
from flows.settings import configure_environment
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn

SETTLE, SETTLE_INTERRUPTED = 60.0, 8.0  # seconds that a command waits at its end for mirrors still at work


class Mirror:
    """A process that mirrors one run whenever it is asked to (`python -m flows.tracking.mlflow_run --on-request RUN`).

    Args:
        run: the run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.asked_at = 0.0
        self._asked = self._answered = 0
        self._complete = True
        configure_environment()
        # A server that is away is met again by the next mirror; there is no use in minutes of retries.
        patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
        self.process = spawn(
            "flows.tracking.mlflow_run",
            "--on-request",
            str(run.path.absolute()),
            env=patience | os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends training, and what was learned is still brought to MLflow
        )

    def ask(self) -> None:
        """Ask for everything that is in the event log now."""
        assert self.process.stdin is not None
        self._asked, self.asked_at = self._asked + 1, time.monotonic()
        with suppress(BrokenPipeError):  # it has died, which `answer` finds
            os.write(self.process.stdin.fileno(), b"\n")

    def answer(self, deadline: float = 0.0) -> bool | None:
        """Whether the last request was fulfilled; None if it is not answered by the deadline (monotonic seconds)."""
        assert self.process.stdout is not None
        while self._answered < self._asked:
            if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            said = os.read(self.process.stdout.fileno(), 1000)
            self._answered = self._answered + len(said) if said else self._asked
            self._complete = said.endswith(b"+")
        return self._complete

    def end(self) -> None:
        """End the process; what it has not brought is noted in run.log, and the next mirror brings it."""
        unanswered = self.answer() is None
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        if unanswered:
            again = f"`python -m flows.tracking.mlflow_run {self.run.path}` tries again"
            note_failure(self.run, f"not up to date when the command ended; {again}")
            self.process.kill()
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_MIRRORS: dict[str, Mirror] = {}


def _mirror_of(run: RunDirectory) -> Mirror:
    """The run's mirror, another one if the last was killed or failed."""
    key = str(run.path.absolute())
    if key in _MIRRORS and _MIRRORS[key].answer() is False:
        _MIRRORS.pop(key).end()
    if key not in _MIRRORS:
        _MIRRORS[key] = Mirror(run)
    return _MIRRORS[key]


def mirror_in_background(run: RunDirectory, every: float = 30.0) -> None:
    """Have `flows.tracking.mlflow_run.mirror` done in another process; its failures are lines in run.log.

    Args:
        run: the run directory.
        every: seconds between two requests for one run; a call that comes earlier, or before the last one is answered,
            asks for nothing: what is left out, the next one brings. 0: ask in any case.
    """
    mirror = _mirror_of(run)
    due = mirror.answer() is not None and (not mirror.asked_at or time.monotonic() - mirror.asked_at >= every)
    if due or every == 0:
        mirror.ask()


def finish_mirror(run: RunDirectory, timeout: float = 120.0) -> bool:
    """Bring MLflow up to date at a run's end and wait for it at most `timeout` seconds.

    Args:
        run: the run directory.
        timeout: seconds; a store that does not answer must not keep a finished run.

    Returns:
        Whether MLflow has everything now; if not, run.log says why and a later mirror brings the rest.
    """
    mirror = _mirror_of(run)
    mirror.ask()
    complete = mirror.answer(time.monotonic() + timeout)
    if complete is None:
        _MIRRORS.pop(str(run.path.absolute())).end()
    return bool(complete)


@before_leaving
def settle() -> None:
    """Wait for the mirrors at work, then end them: nothing outlives the command that started it.

    After an interruption the wait is short. What a mirror had not brought yet, the next one brings.
    """
    deadline = time.monotonic() + time_left(SETTLE_INTERRUPTED if interrupted() else SETTLE)
    while _MIRRORS:
        key, mirror = next(iter(_MIRRORS.items()))
        mirror.answer(deadline)
        del _MIRRORS[key]
        mirror.end()


def note_failure(run: RunDirectory, reason: str) -> None:
    """Write to run.log that MLflow was not reached."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with open(run.log, "a") as handle:
        handle.write(f"{stamp} MLflow is behind: {reason}\n")
