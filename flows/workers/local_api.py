"""Private Prefect server of a single command, for use without the servers of `make up`. It serves only Prefect's API.

A flow always needs Prefect's API. Prefect can start a server for this purpose, but in the terminal's process group.
Ctrl-C would then end the server before the flow can report its interruption, and the flow would wait a minute for an
answer. If the flow were killed, that server would keep running.

The server of this module ignores SIGINT, SIGTERM and SIGHUP. It shuts down when its stdin is closed, and ends
immediately if its parent process dies (rlcore.system.lifeline). If the server dies, for example for lack of memory, it
is restarted. The parent process owns the listening socket, so requests during the restart wait a few seconds and are
not refused.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from importlib import import_module
from pathlib import Path

from flows.process.locks import hold
from flows.process.network import is_outage
from flows.process.signals import interrupt, time_left
from flows.runs.listeners import announce, emit
from flows.settings import configure_environment, state_folder
from flows.workers.prefect_app import LOGIN, protected_api
from flows.workers.servers import START_TIMEOUT, databases_without_server
from rlcore.errors import MachineFault, RunError, first_line
from rlcore.system.forked import Forked, fork_here
from rlcore.system.imports import large_imports
from rlcore.system.lifeline import spawn

STOP_TIMEOUT = 20.0  # seconds
# Imports that the API process needs, and that Prefect's client and MLflow partly need too.
SHARED = ("prefect", "prefect.main", "sqlalchemy.orm", "sqlalchemy.ext.asyncio", "alembic", "fastapi", "uvicorn")
_begun: _Api | None = None  # the API that `prefect_api_soon` has started and `prefect_api` has not used yet


@contextmanager
def prefect_api() -> Iterator[str]:
    """Context manager that provides Prefect's API and yields its URL.

    If PREFECT_API_URL is set, that server is used. Otherwise, a private server is started in a child process and ended
    on exit. Raises UserError if the servers of `make up` are using the databases, which a private server would need,
    and RunError if the private server does not start.
    """
    configure_environment()
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_HOME, temporary_settings

    url = PREFECT_API_URL.value()
    if url:
        with _faults_in_a_sentence():
            yield url
        return
    with databases_without_server(), _own_server() as api:
        _hand_over()  # sends them to the server that this process used before
        # Prefect read its home when it was imported, perhaps for a training in another home.
        home = os.environ["PREFECT_HOME"]
        with temporary_settings({PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: api.login, PREFECT_HOME: home}):
            try:
                with _faults_in_a_sentence():
                    yield api.url
            finally:
                _hand_over()  # before the API ends


@contextmanager
def _faults_in_a_sentence() -> Iterator[None]:
    """Context manager that converts two errors of Prefect to a `MachineFault` with a one-sentence message.

    The errors are: Prefect's API does not answer, and the flow run of this command was deleted.
    """
    import httpx  # this import takes no time, because Prefect has imported the package already
    from prefect.exceptions import ObjectNotFound

    try:
        yield
    except ObjectNotFound as error:
        raise MachineFault("the flow run of this command was deleted from Prefect's database") from error
    except httpx.HTTPError as error:
        if not is_outage(error):
            raise
        raise MachineFault(f"Prefect's API does not answer, or its database is locked ({first_line(error)})") from error


def _hand_over() -> None:
    """Send Prefect's buffered events and log lines to the server that this process has used up to now.

    This must precede a change of the server. Prefect's `drain_all` is called in another thread, because in a thread
    with an event loop, such as that of a notebook, it would only return a coroutine.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    with ThreadPoolExecutor(1) as thread:
        for worker in (EventsWorker, APILogWorker):
            thread.submit(worker.drain_all, timeout=time_left(10.0)).result()


@contextmanager
def prefect_api_soon() -> Iterator[None]:
    """Context manager that starts the private Prefect server early, because its start takes seconds.

    `prefect_api` in the body then uses this server. The server is forked from this process after the modules that both
    need are imported. If it is not used, it is killed on exit. If Prefect's database does not exist yet, nothing is
    started, because a kill during its creation would damage the database.
    """
    global _begun
    if os.environ.get("PREFECT_API_URL") or not _locate_mark().exists():
        yield
        return
    with databases_without_server():
        configure_environment()
        with announce("importing Prefect"), large_imports("prefect"):
            for module in SHARED:
                import_module(module)
        _begun = _Api(forked=True)
        try:
            yield
        finally:
            if _begun is not None:  # it was not used
                _begun.end(0.0)
                _begun = None


class _Api:
    """Private Prefect server in a child process. If the process dies, it is restarted."""

    def __init__(self, forked: bool = False) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.login = f"shepherd:{secrets.token_urlsafe(32)}"  # known only to this process and the API
        self._ending = False
        self._watcher: threading.Thread | None = None
        self._changing = threading.Lock()  # protects `_process` and `_ending`
        self._process = (self._fork() if forked else None) or self._start()

    @property
    def url(self) -> str:
        """URL of the server's API."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"

    def ready(self) -> bool:
        """Wait until the server answers. Return False if it has ended or takes longer than `START_TIMEOUT`."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT)
        return bool(readable and self._process.stdout.readline())

    def watch(self) -> None:
        """Start a thread that restarts the server if it dies. If the restart fails, the command is interrupted."""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            with self._changing:
                if self._ending:
                    return
                self._close()
                died = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                emit("stage", {"doing": f"Prefect's API {died}; restarting it"})
                self._process = self._start()
            if not self.ready() and not self._ending:
                emit("stage", {"doing": f"Prefect's API did not restart; see {_log()}"})
                interrupt()
                return

    def end(self, seconds: float) -> None:
        """Shut the server down, and kill it if that takes longer than `seconds`."""
        with self._changing:
            self._ending = True
        assert self._process.stdin is not None
        self._process.stdin.close()  # the API shuts down at the end of its stdin
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._watcher:
            self._watcher.join()
        self._close()
        self._listening.close()

    def _close(self) -> None:
        """Close the pipes to the server process after it has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with open(_log(), "ab") as log:
            return spawn(
                "flows.workers.local_api",
                str(self._listening.fileno()),
                env=os.environ | {LOGIN: self.login},
                pass_fds=(self._listening.fileno(),),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _fork(self) -> Forked | None:
        descriptor, login = self._listening.fileno(), self.login
        with open(_log(), "ab") as log:
            return fork_here("prefect-api", lambda: serve(login, descriptor), keep=[descriptor], stderr=log.fileno())


def _log() -> Path:
    return state_folder() / "prefect-server.log"


def _locate_mark() -> Path:
    """Return the path of a marker file, which is created when the creation of Prefect's database is complete."""
    return state_folder() / "prefect" / "made"


@contextmanager
def _own_server() -> Iterator[_Api]:
    global _begun
    with ExitStack() as first:
        if not _locate_mark().exists():  # without a lock, a second process would use the incomplete database
            first.enter_context(hold(_locate_mark().with_suffix(".lock"), waiting="creates Prefect's database"))
        api, _begun = _begun or _Api(), None
        with announce("starting Prefect's API"):
            ready = api.ready()
        if ready:
            _locate_mark().touch()
    try:
        if not ready:
            raise RunError(f"Prefect's API did not start; see {_log()}")
        api.watch()
        yield api
    finally:
        api.end(time_left(STOP_TIMEOUT))


def serve(login: str, descriptor: int | None = None) -> None:
    """Run the private Prefect server in this process: print the port when it answers, and serve until stdin is closed.

    Args:
        login: `user:password` that every request must contain.
        descriptor: File descriptor of a listening socket; None = create a socket.
    """
    # A service manager sends SIGTERM to every process, and an interrupted flow still needs this API.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with large_imports("prefect.server.api.server"):
        import prefect.server.api.server  # noqa: F401 - imported early for `protected_api`
        import uvicorn
        from prefect import settings

    listening = socket.create_server(("127.0.0.1", 0)) if descriptor is None else socket.socket(fileno=descriptor)
    port = listening.getsockname()[1]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the pipe carries only the port; Prefect's output goes to the log
    own = f"http://127.0.0.1:{port}"
    # Prefect stores each change of state twice, as a state and as an event, and checks automations for every event.
    # The API of a single command has no reader of events and no automations.
    unused = (
        settings.PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED,
        settings.PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED,
        settings.PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED,
    )
    with settings.temporary_settings(
        {settings.PREFECT_SERVER_API_AUTH_STRING: login, settings.PREFECT_SERVER_CORS_ALLOWED_ORIGINS: own},
        set_defaults=dict.fromkeys(unused, False),
    ):
        server = uvicorn.Server(uvicorn.Config(protected_api(login), log_level="error", lifespan="on"))
        # In the main thread uvicorn would install signal handlers. Prefect's requests need the settings of the context.
        running = threading.Thread(target=copy_context().run, args=(server.run, [listening]), daemon=True)
        running.start()
    while running.is_alive() and not server.started:
        time.sleep(0.02)
    if server.started:
        output.write(f"{port}\n")
    output.close()
    sys.stdin.buffer.read()
    server.should_exit = True
    running.join(STOP_TIMEOUT)
    os._exit(0)


if __name__ == "__main__":
    serve(os.environ[LOGIN], int(sys.argv[1]))
