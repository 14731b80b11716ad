"""Mirror process: copies the event log of a run to the tracking backends (MLflow, TensorBoard, CSV, W&B).

Training need not wait for the copy. One mirror process serves many requests, because MLflow takes seconds to import.
Each run has its own mirror process, or all runs that are started by one process share one (`flows.runs.warm`). A mirror
process ends together with the command that started it. If it fails, the next request starts a new one. In this file,
the class `Mirror` is the client, which sends the requests; `main` is the mirror process, which answers them.
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
from flows.tracking.loggers import has_logger, send_points
from flows.tracking.mlflow_store import store_uri
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import spawn
from rlcore.system.printable import printable_line
from rlcore.system.secrets import redact

SETTLE, SETTLE_INTERRUPTED = 60.0, 8.0  # seconds that a command waits at its end for running mirrors
# Answers to a request. A request is a line of JSON: the folder of a run, or "" to wait for all earlier requests; and
# true if this is the last request for this run, so that its logger can be closed.
DONE, FAILED = b"+", b"-"


def mirror_in_background(run: RunDirectory, every: float = 30.0, last: bool = False) -> None:
    """Request an update of a run's tracking backends (MLflow, TensorBoard, CSV, W&B), without waiting for it.

    Another process, the mirror process, copies the event log to the backends. No request is sent if the last one is
    unanswered or was sent less than `every` seconds ago. This loses no data, because each update copies everything that
    has been logged. Failures are written to run.log.

    Args:
        run: the run.
        every: minimal number of seconds between two requests; 0 always sends a request.
        last: True if this command will not train the run any more.
    """
    mirror = _mirror_of(run)
    due = mirror.answer() is not None and (not mirror.asked_at or time.monotonic() - mirror.asked_at >= every)
    if due or every == 0:
        mirror.ask(last)


def finish_mirror(run: RunDirectory, timeout: float = 120.0) -> bool:
    """Update a run's tracking backends (MLflow, TensorBoard, CSV, W&B) at its end; wait until they are complete.

    Usually a mirror process (a process that copies event logs to the backends) makes the update. If a short run has not
    started one, the calling process makes the update, because it has already imported MLflow to register the model.
    There are three exceptions, in which a mirror process always makes the update: runs share a mirror process; the data
    go to an MLflow server, because the mirror process has timeouts for requests to a server; or the run has a logger
    that receives its points one after another, such as W&B.

    Args:
        run: the run.
        timeout: longest wait, in seconds, so that a backend that does not answer cannot block a finished run.

    Returns:
        True if the backends are complete; if False, run.log contains the reason.
    """
    shared = warm_folder() is not None or is_server(store_uri(run.read_config()))
    if str(run.path.absolute()) not in _MIRRORS and not shared and not has_logger(run):
        return _finish_here(run, timeout)
    deadline, complete = time.monotonic() + timeout, None
    for _ in range(2):  # the first request detects that the process was killed; the second uses a new one
        mirror = _mirror_of(run)
        mirror.ask(last=True)
        complete = mirror.answer(deadline)
        if not mirror.gone:
            break
    if complete is None:
        _MIRRORS.pop(str(run.path.absolute())).end()
    return bool(complete)


def _finish_here(run: RunDirectory, timeout: float) -> bool:
    """Update a run's tracking backends in a thread of this process. Return True if it succeeds within `timeout` s."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(update_or_warn(run)), name="mirror", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        _note_failure(run, f"no answer in {timeout:g} s; run `python -m flows.tracking {run.path}` to update it")
    return results == [True]


@run_before_exit
def settle() -> None:
    """Wait until the processes that copy event logs to the tracking backends have answered all requests, then end them.

    The wait is at most 60 s, or 8 s after an interruption. None of these processes continues after the end of the
    command that started it.
    """
    deadline = time.monotonic() + time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE)
    while _MIRRORS:
        key, mirror = next(iter(_MIRRORS.items()))
        mirror.answer(deadline)
        del _MIRRORS[key]
        mirror.end()


class Mirror:
    """Client of a process that copies event logs to the tracking backends (MLflow, TensorBoard, CSV, W&B).

    It sends requests to update the backends of one run, and reads the answers.
    """

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

    def ask(self, last: bool = False) -> None:
        """Request an update of the tracking backends, without waiting for it; `last` also closes the run's logger."""
        self._asked, self.asked_at = self._asked + 1, time.monotonic()
        with suppress(OSError):  # the process has died; `answer` detects it
            self._connection.sendall(_request(str(self.run.path.absolute()), last))

    def answer(self, deadline: float = 0.0) -> bool | None:
        """Wait until all requests are answered.

        Args:
            deadline: latest time to wait for, as from `time.monotonic()`. The default does not wait.

        Returns:
            True if the last update succeeded, or there was no request; False if it failed; None if answers are missing.
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
        """Close the connection, and kill the mirror process, unless other runs share it.

        If an answer is missing, a line in run.log states that the backends are not up to date.
        """
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
    """Context manager that starts a mirror process for several processes; it copies event logs to the backends.

    Args:
        folder: private folder for the socket. A process whose `flows.settings.warm_folder()` is this folder uses this
            mirror process for its runs.

    Yields:
        Nothing.
    """
    configure_environment()
    with listen(_address(folder)) as socket_:
        process = _serving(socket_)
    try:
        yield
    finally:
        last = _connect(folder)
        if last is not None:
            with last, suppress(OSError):  # wait for requests of processes that have ended
                last.sendall(_request("", False))
                select.select([last], [], [], time_left(SETTLE_INTERRUPTED if is_interrupted() else SETTLE))
        process.kill()
        process.wait()


def _serving(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start a mirror process, which copies an event log to the tracking backends when a socket receives a request.

    Args:
        connection: connected socket (requests of this process), or listening socket (requests of several processes).

    Returns:
        The process.
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
        start_new_session=True,  # after Ctrl-C the process still copies the results to MLflow
    )


def _connect(folder: Path | None) -> socket.socket | None:
    """Connect to the shared mirror process (it copies event logs to the backends) that has a socket in this folder.

    Return None if there is none, or if it was started with other MLflow settings than this process.
    """
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
    """Return the path of the socket of the shared mirror process in a folder.

    The name contains a hash of the environment variables that select MLflow's database or server, so that only
    processes with equal settings share a mirror process.
    """
    stores = sorted((k, v) for k, v in os.environ.items() if k.startswith(("MLFLOW_", "SHEPHERD_HOME")))
    return folder / f"mirror-{hashlib.sha256(json.dumps(stores).encode()).hexdigest()[:16]}"


def _request(run_dir: str, last: bool) -> bytes:
    return json.dumps([run_dir, last]).encode() + b"\n"


def _receive(connection: socket.socket) -> bytes:
    """Receive the available bytes of a socket; b"" if the connected process has closed the connection."""
    with suppress(ConnectionError):
        return connection.recv(65536)
    return b""


_MIRRORS: dict[str, Mirror] = {}


def _mirror_of(run: RunDirectory) -> Mirror:
    """Return the client of a run's mirror process, which copies event logs to the tracking backends.

    Create a new client if there is none, or if the last update failed.
    """
    key = str(run.path.absolute())
    if key in _MIRRORS and _MIRRORS[key].answer() is False:
        _MIRRORS.pop(key).end()
    if key not in _MIRRORS:
        _MIRRORS[key] = Mirror(run)
    return _MIRRORS[key]


def main(arguments: list[str]) -> int:
    """Update the tracking backends of runs. This is the entry point of `python -m flows.tracking`.

    Args:
        arguments: run directories; or `--on-request` and the file descriptor of a socket. In the second case, this is a
            mirror process, which copies event logs to the tracking backends on request: each request on the socket
            names a run, and is answered with `+`, or with `-` after a failure.

    Returns:
        Exit code: 1 if the update of a run failed. Its run.log then contains the reason.
    """
    os.nice(10)  # training has priority on a small machine
    if arguments[:1] != ["--on-request"]:
        return 0 if all([update_or_warn(RunDirectory(argument)) for argument in arguments]) else 1
    _serve(socket.socket(fileno=int(arguments[1])))
    return 0


def _serve(first: socket.socket) -> None:
    """Answer requests on a socket, one after another, until it is closed.

    If the socket is listening, answer the requests on all connections that it accepts.
    """
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
                folder, last = json.loads(request)
                done = not folder or update_or_warn(RunDirectory(folder), last)
                with suppress(OSError):  # the requesting process has ended
                    connection.sendall(DONE if done else FAILED)
            if not data:
                del received[connection]
                connection.close()


def update_or_warn(run: RunDirectory, last: bool = True) -> bool:
    """Update a run's tracking backends in this process. If that fails, write the reason to run.log, return False.

    `last` closes the run's logger (`flows.tracking.loggers`).
    """
    updated = _update_backends_or_warn(run)  # first, because it does not wait for a server of a logger
    try:
        send_points(run, last)
    except (RunError, UserError, OSError) as error:
        _note_failure(run, f"not all points were sent: {error}", "")
        return False
    return updated


def _update_backends_or_warn(run: RunDirectory) -> bool:
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


def _note_failure(run: RunDirectory, reason: str, subject: str = "MLflow is behind: ") -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with open(run.log, "a") as handle:
        handle.write(f"{stamp} {subject}{printable_line(redact(reason))}\n")
