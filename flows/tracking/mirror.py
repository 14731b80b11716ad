"""Mirror: a process that updates the tracking backends of a run, so that training never waits for the backends.

The process answers many requests, because MLflow takes seconds to import. There is one mirror per run, or a shared one
for all runs that one process drives (`flows.runs.warm`). It ends with the command. After a failure, the next request
starts a new one. In this file, `Mirror` sends the requests and `main` answers them.
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

SETTLE, SETTLE_INTERRUPTED = 60.0, 8.0  # seconds that a command waits at its end for running mirrors
# Answers to a request. A request is a line of JSON: the folder of a run, or "" to wait for all earlier requests.
DONE, FAILED = b"+", b"-"


def mirror_in_background(run: RunDirectory, every: float = 30.0) -> None:
    """Request an update of a run's backends from the mirror process; failures are written to run.log.

    A call does nothing if the last request is not answered yet or was sent less than `every` seconds ago; the next
    request includes its data. `every=0` always sends a request.
    """
    mirror = _mirror_of(run)
    due = mirror.answer() is not None and (not mirror.asked_at or time.monotonic() - mirror.asked_at >= every)
    if due or every == 0:
        mirror.ask()


def finish_mirror(run: RunDirectory, timeout: float = 120.0) -> bool:
    """Update a run's backends at its end. Return False if they are incomplete; run.log then contains the reason.

    The update takes at most `timeout` seconds, so that a store that does not answer cannot block a finished run. A
    short run without a mirror is updated by this process, which has imported MLflow to register the model. If the store
    is a server, a separate process with its own timeouts updates it.
    """
    shared = warm_folder() is not None or is_server(store_uri(run.read_config()))
    if str(run.path.absolute()) not in _MIRRORS and not shared:
        return _finish_here(run, timeout)
    deadline, complete = time.monotonic() + timeout, None
    for _ in range(2):  # the first request detects a mirror that was killed; the second uses a new mirror
        mirror = _mirror_of(run)
        mirror.ask()
        complete = mirror.answer(deadline)
        if not mirror.gone:
            break
    if complete is None:
        _MIRRORS.pop(str(run.path.absolute())).end()
    return bool(complete)


def _finish_here(run: RunDirectory, timeout: float) -> bool:
    """Update a run's backends in this process, within `timeout` seconds. Return True if that succeeded."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(update_or_warn(run)), name="mirror", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        _note_failure(run, f"no answer in {timeout:g} s; run `python -m flows.tracking {run.path}` to update it")
    return results == [True]


@run_before_exit
def settle() -> None:
    """Wait for the running mirrors, then end them. After an interruption, wait only shortly.

    No mirror continues after the end of its command.
    """
    deadline = time.monotonic() + time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE)
    while _MIRRORS:
        key, mirror = next(iter(_MIRRORS.items()))
        mirror.answer(deadline)
        del _MIRRORS[key]
        mirror.end()


class Mirror:
    """Connection to the process that mirrors a run on request."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.asked_at = 0.0
        self._asked = self._answered = 0
        self._complete = True
        self.gone = False  # True if the process ended unexpectedly
        configure_environment()
        self.process: subprocess.Popen[bytes] | None = None
        connection = _connect(warm_folder())
        if connection is None:
            connection, theirs = socket.socketpair()
            with theirs:
                self.process = _serving(theirs)
        self._connection = connection

    def ask(self) -> None:
        """Request an update with the current content of the event log."""
        self._asked, self.asked_at = self._asked + 1, time.monotonic()
        with suppress(OSError):  # the process has died; `answer` detects it
            self._connection.sendall(_request(str(self.run.path.absolute())))

    def answer(self, deadline: float = 0.0) -> bool | None:
        """Wait for the answer until `deadline` (in the time of `time.monotonic`).

        Return True if the backends were updated, False if the update failed, and None if there was no answer.
        """
        while self._answered < self._asked:
            if not select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            answers = _receive(self._connection)
            self.gone = not answers
            self._answered = self._answered + len(answers) if answers else self._asked
            self._complete = answers.endswith(DONE)
        return self._complete

    def end(self) -> None:
        """End the process if only this run uses it. If an update is incomplete, write that to run.log."""
        unanswered = self.answer() is None
        self._connection.close()
        if self.process is None:
            return
        if unanswered:
            note = f"not up to date when the command ended; run `python -m flows.tracking {self.run.path}` to update it"
            _note_failure(self.run, note)
        else:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        self.process.kill()
        self.process.wait()


@contextmanager
def share_mirror(folder: Path) -> Iterator[None]:
    """Inside this context, one process mirrors the runs of all processes whose `warm_folder()` is `folder`."""
    configure_environment()
    with listen(_address(folder)) as socket_:
        process = _serving(socket_)
    try:
        yield
    finally:
        last = _connect(folder)
        if last is not None:
            with last, suppress(OSError):  # wait for requests of processes that have ended
                last.sendall(_request(""))
                select.select([last], [], [], time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE))
        process.kill()
        process.wait()


def _serving(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start a mirror: a process that copies the results of runs to MLflow when it receives a request on this socket.

    The socket is connected (one run) or listening (runs of several processes).
    """
    # The next update tries again if the server is away, so long retries are not useful.
    limits = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
    return spawn(
        "flows.tracking",
        "--on-request",
        str(connection.fileno()),
        pass_fds=(connection.fileno(),),
        env=limits | os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # after Ctrl-C the mirror still copies the results to MLflow
    )


def _connect(folder: Path | None) -> socket.socket | None:
    """Connect to the shared mirror. Return None if there is none with the MLflow settings of this process."""
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
    """Return the socket path of a mirror. Its name contains a hash of the settings that select the stores."""
    stores = sorted((k, v) for k, v in os.environ.items() if k.startswith(("MLFLOW_", "SHEPHERD_HOME")))
    return folder / f"mirror-{hashlib.sha256(json.dumps(stores).encode()).hexdigest()[:16]}"


def _request(run_dir: str) -> bytes:
    return json.dumps(run_dir).encode() + b"\n"


def _receive(connection: socket.socket) -> bytes:
    """Receive available bytes; empty if the other end has closed the connection."""
    with suppress(ConnectionError):
        return connection.recv(65536)
    return b""


_MIRRORS: dict[str, Mirror] = {}


def _mirror_of(run: RunDirectory) -> Mirror:
    """Return the run's mirror; start a new one if there is none or the last one was killed or failed."""
    key = str(run.path.absolute())
    if key in _MIRRORS and _MIRRORS[key].answer() is False:
        _MIRRORS.pop(key).end()
    if key not in _MIRRORS:
        _MIRRORS[key] = Mirror(run)
    return _MIRRORS[key]


def main(arguments: list[str]) -> int:
    """Update the backends of the runs in `arguments`. After a failure, write a line to run.log and return exit code 1.

    With `--on-request DESCRIPTOR`, requests arrive on that socket. Each one updates a run and is answered with `+`, or
    with `-` after a failure.
    """
    os.nice(10)  # training has priority on a small machine
    if arguments[:1] != ["--on-request"]:
        return 0 if all([update_or_warn(RunDirectory(argument)) for argument in arguments]) else 1
    _serve(socket.socket(fileno=int(arguments[1])))
    return 0


def _serve(first: socket.socket) -> None:
    """Answer requests, in order, on a socket and on the connections that it accepts, until all are closed."""
    received: dict[socket.socket, bytes] = {first: b""}
    listens = bool(first.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    while received:
        for connection in select.select(list(received), [], [])[0]:
            if listens and connection is first:
                received[first.accept()[0]] = b""
                continue
            data = _receive(connection)
            *requests, received[connection] = (received[connection] + data).split(b"\n")
            for request in requests:
                folder = json.loads(request)
                done = not folder or update_or_warn(RunDirectory(folder))
                with suppress(OSError):  # the requesting process has ended
                    connection.sendall(DONE if done else FAILED)
            if not data:
                del received[connection]
                connection.close()


def update_or_warn(run: RunDirectory) -> bool:
    """Update a run's backends in this process. Return False, with the reason in run.log, if that failed."""
    reason = ""
    for pause in (0, 1, 3):  # another process may have locked SQLite
        time.sleep(pause)
        try:
            update_backends(run)
            return True
        except (RunError, UserError, OSError) as error:  # a retry would fail too
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
