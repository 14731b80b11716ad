"""The mirror of a run: a process that keeps its tracking backends up to date, so that training never waits for them.

A process that is asked again and again, because MLflow takes seconds to import: one for each run, or one for all runs
of a driver (`flows.runs.warm`). It ends with the command; where it failed, another takes its place at the next request.
Both sides are here: `Mirror` asks, `main` answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.process.network import is_server, listen
from flows.process.signals import is_interrupted, run_before_exit, time_left
from flows.settings import configure_environment, warm_folder
from flows.tracking.backends import update_backends
from flows.tracking.mlflow_store import store_uri
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn
from rlcore.system.printable import printable_line
from rlcore.system.secrets import redact

SETTLE, SETTLE_INTERRUPTED = 60.0, 8.0  # seconds that a command waits at its end for mirrors still at work
# Answers to a request, which is a line: a run's folder in JSON, or "" to be told that the others are done.
DONE, FAILED = b"+", b"-"


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

    It takes `timeout` seconds at most: a store that does not answer must not keep a finished run. A run that no process
    mirrors, for it was brief, is brought by this one, which has imported MLflow to register it; to a server a process
    of its own brings it, whose patience is its own.
    """
    shared = warm_folder() is not None or is_server(store_uri(run.read_config()))
    if str(run.path.absolute()) not in _MIRRORS and not shared:
        return _finish_here(run, timeout)
    deadline, complete = time.monotonic() + timeout, None
    for _ in range(2):  # one that was killed since the last request is found to be gone by this one
        mirror = _mirror_of(run)
        mirror.ask()
        complete = mirror.answer(deadline)
        if not mirror.gone:
            break
    if complete is None:
        _MIRRORS.pop(str(run.path.absolute())).end()
    return bool(complete)


def _finish_here(run: RunDirectory, timeout: float) -> bool:
    """Bring a run's backends up to date in this process, within so many seconds."""
    brought: list[bool] = []
    bringing = threading.Thread(target=lambda: brought.append(update_or_warn(run)), name="mirror", daemon=True)
    bringing.start()
    bringing.join(timeout)
    if bringing.is_alive():
        _note_failure(run, f"no answer in {timeout:g} s; `python -m flows.tracking {run.path}` tries again")
    return brought == [True]


@run_before_exit
def settle() -> None:
    """Wait for the mirrors at work, after an interruption shortly, then end them: none outlives its command."""
    deadline = time.monotonic() + time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE)
    while _MIRRORS:
        key, mirror = next(iter(_MIRRORS.items()))
        mirror.answer(deadline)
        del _MIRRORS[key]
        mirror.end()


class Mirror:
    """The process that mirrors a run whenever it is asked to, seen from the process that asks."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.asked_at = 0.0
        self._asked = self._answered = 0
        self._complete = True
        self.gone = False  # the process has ended, though nobody asked it to
        configure_environment()
        self.process: subprocess.Popen[bytes] | None = None
        connection = _connect(warm_folder())
        if connection is None:
            connection, theirs = socket.socketpair()
            with theirs:
                self.process = _serving(theirs)
        self._connection = connection

    def ask(self) -> None:
        """Ask for everything that is in the event log now."""
        self._asked, self.asked_at = self._asked + 1, time.monotonic()
        with suppress(OSError):  # it has died, which `answer` finds
            self._connection.sendall(_request(str(self.run.path.absolute())))

    def answer(self, deadline: float = 0.0) -> bool | None:
        """Await an answer until a deadline (monotonic seconds): True: the last request was fulfilled; None: none."""
        while self._answered < self._asked:
            if not select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            said = _hear(self._connection)
            self.gone = not said
            self._answered = self._answered + len(said) if said else self._asked
            self._complete = said.endswith(DONE)
        return self._complete

    def end(self) -> None:
        """End the process if it is this run's own; what it has not brought is noted in run.log, for the next mirror."""
        unanswered = self.answer() is None
        self._connection.close()
        if self.process is None:
            return
        if unanswered:
            note = f"not up to date when the command ended; `python -m flows.tracking {self.run.path}` tries again"
            _note_failure(self.run, note)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        self.process.kill()
        self.process.wait()


@contextmanager
def share_mirror(folder: Path) -> Iterator[None]:
    """Inside the `with`, one process mirrors the runs of all processes for which `folder` is `warm_folder()`."""
    configure_environment()
    with listen(_address(folder)) as socket_:
        process = _serving(socket_)
    try:
        yield
    finally:
        last = _connect(folder)
        if last is not None:
            with last, suppress(OSError):  # those that have ended may have asked for something
                last.sendall(_request(""))
                select.select([last], [], [], time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE))
        process.kill()
        process.wait()


def _serving(connection: socket.socket) -> subprocess.Popen[bytes]:
    """A mirror that answers on a socket: connected, or one that listens."""
    # A server that is away is met again by the next mirror; there is no use in minutes of retries.
    patience = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    return spawn(
        "flows.tracking",
        "--on-request",
        str(connection.fileno()),
        pass_fds=(connection.fileno(),),
        env=patience | os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C ends training, and what was learned is still brought to MLflow
    )


def _connect(folder: Path | None) -> socket.socket | None:
    """A connection to the mirror that all runs share, if there is one for stores such as this process's."""
    if folder is None:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(_address(folder)))
    except OSError:
        connection.close()
        return None
    return connection


def _address(folder: Path) -> Path:
    """Socket of a mirror, in whose name is what decides which stores a mirror brings runs to."""
    stores = sorted((k, v) for k, v in os.environ.items() if k.startswith(("MLFLOW_", "SHEPHERD_HOME")))
    return folder / f"mirror-{hashlib.sha256(json.dumps(stores).encode()).hexdigest()[:16]}"


def _request(run_dir: str) -> bytes:
    return json.dumps(run_dir).encode() + b"\n"


def _hear(connection: socket.socket) -> bytes:
    """Bytes that are there to be read; nothing where the other end is gone."""
    with suppress(ConnectionError):
        return connection.recv(65536)
    return b""


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

    `--on-request DESCRIPTOR`: do it for every request on a socket, and answer each with `+` or, after a failure, `-`.
    """
    os.nice(10)  # training comes first on a small machine
    if arguments[:1] != ["--on-request"]:
        return 0 if all([update_or_warn(RunDirectory(argument)) for argument in arguments]) else 1
    _serve(socket.socket(fileno=int(arguments[1])))
    return 0


def _serve(first: socket.socket) -> None:
    """Answer one after the other whoever asks on a socket, or connects to it, until nobody can."""
    heard: dict[socket.socket, bytes] = {first: b""}
    listens = bool(first.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    while heard:
        for connection in select.select(list(heard), [], [])[0]:
            if listens and connection is first:
                heard[first.accept()[0]] = b""
                continue
            said = _hear(connection)
            *requests, heard[connection] = (heard[connection] + said).split(b"\n")
            for request in requests:
                folder = json.loads(request)
                done = not folder or update_or_warn(RunDirectory(folder))
                with suppress(OSError):  # who asked has ended
                    connection.sendall(DONE if done else FAILED)
            if not said:
                del heard[connection]
                connection.close()


def update_or_warn(run: RunDirectory) -> bool:
    """Bring a run's backends up to date in this process; False where run.log says why they lack something."""
    reason = ""
    for pause in (0, 1, 3):  # another process may hold SQLite just now
        time.sleep(pause)
        try:
            update_backends(run)
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
        handle.write(f"{stamp} MLflow is behind: {printable_line(redact(reason))}\n")
