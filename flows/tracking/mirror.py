"""The mirror of a run: a process that keeps its tracking backends up to date, so that training never waits for them.

One process a run, asked again and again, because MLflow takes seconds to import. It ends with the command; where it
failed, another takes its place at the next request. Both sides are here: `Mirror` asks, `main` answers.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress

from flows.process.signals import before_leaving, interrupted, time_left
from flows.settings import configure_environment
from flows.tracking.backends import bring
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn
from rlcore.system.secrets import redacted

SETTLE, SETTLE_INTERRUPTED = 60.0, 8.0  # seconds that a command waits at its end for mirrors still at work
DONE, FAILED = b"+", b"-"  # answers to a request, which is a line


def mirror_in_background(run: RunDirectory, every: float = 30.0) -> None:
    """Have a run's backends brought up to date by another process; its failures are lines in run.log.

    A call that comes less than `every` seconds after the last one, or before that is answered, asks for nothing: what
    it leaves out, the next one brings. 0: ask in any case.
    """
    mirror = _mirror_of(run)
    due = mirror.answer() is not None and (not mirror.asked_at or time.monotonic() - mirror.asked_at >= every)
    if due or every == 0:
        mirror.ask()


def finish_mirror(run: RunDirectory, timeout: float = 120.0) -> bool:
    """Bring a run's backends up to date at its end; False where run.log says why they lack something.

    It takes `timeout` seconds at most: a store that does not answer must not keep a finished run.
    """
    mirror = _mirror_of(run)
    mirror.ask()
    complete = mirror.answer(time.monotonic() + timeout)
    if complete is None:
        _MIRRORS.pop(str(run.path.absolute())).end()
    return bool(complete)


@before_leaving
def settle() -> None:
    """Wait for the mirrors at work, after an interruption shortly, then end them: none outlives its command."""
    deadline = time.monotonic() + time_left(SETTLE_INTERRUPTED if interrupted() else SETTLE)
    while _MIRRORS:
        key, mirror = next(iter(_MIRRORS.items()))
        mirror.answer(deadline)
        del _MIRRORS[key]
        mirror.end()


class Mirror:
    """The process that mirrors one run whenever it is asked to, seen from the process that asks."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.asked_at = 0.0
        self._asked = self._answered = 0
        self._complete = True
        configure_environment()
        # A server that is away is met again by the next mirror; there is no use in minutes of retries.
        patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
        self.process = spawn(
            "flows.tracking",
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
            self._complete = said.endswith(DONE)
        return self._complete

    def end(self) -> None:
        """End the process; what it has not brought is noted in run.log, and the next mirror brings it."""
        unanswered = self.answer() is None
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        if unanswered:
            note = f"not up to date when the command ended; `python -m flows.tracking {self.run.path}` tries again"
            _note_failure(self.run, note)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
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


def main(arguments: list[str]) -> int:
    """`python -m flows.tracking RUN...`: bring runs up to date; a failure is a line in run.log and exit code 1.

    `--on-request RUN`: do it for every line on standard input, and answer each with `+` or, after a failure, `-`.
    """
    os.nice(10)  # training comes first on a small machine
    if arguments[:1] != ["--on-request"]:
        return 0 if all([_bring_or_note(RunDirectory(argument)) for argument in arguments]) else 1
    answers = os.dup(1)
    os.dup2(2, 1)  # what MLflow prints is no answer
    while sys.stdin.buffer.readline():
        os.write(answers, DONE if _bring_or_note(RunDirectory(arguments[1])) else FAILED)
    return 0


def _bring_or_note(run: RunDirectory) -> bool:
    reason = ""
    for pause in (0, 1, 3):  # another process may hold SQLite just now
        time.sleep(pause)
        try:
            bring(run)
            return True
        except (RunError, UserError, OSError) as error:  # another try would meet the same
            reason = str(error)
            break
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    _note_failure(run, reason)
    return False


def _note_failure(run: RunDirectory, reason: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with open(run.log, "a") as handle:
        handle.write(f"{stamp} MLflow is behind: {redacted(reason)}\n")
