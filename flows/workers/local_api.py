"""A Prefect API for one process, when there is no server: started with the flow, gone with it.

Prefect can start one by itself, but in the terminal's own process group: Ctrl-C would end the API before it hears that
the flow was interrupted, and the flow would wait a minute for it; and after a kill it would be left behind. This one
heeds no signal but SIGKILL. It ends well when its stdin does, and at once when its parent is gone
(rlcore.system.lifeline).

Where it dies, killed for memory say, it is started again. The socket that it answers at is its parent's: who asks in
between waits a few seconds, and is not refused.
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
from flows.runs.listeners import emit
from flows.settings import configure_environment, state_folder
from flows.workers.prefect_app import LOGIN, protected_api
from flows.workers.servers import START_TIMEOUT, databases_without_server
from rlcore.errors import MachineFault, RunError, first_line
from rlcore.system.fork_here import fork_here
from rlcore.system.forked import Forked
from rlcore.system.imports import large_imports
from rlcore.system.lifeline import spawn

STOP_TIMEOUT = 20.0  # seconds
# What Prefect's client, its API and MLflow import alike; the API wants all of it, the others their part.
SHARED = ("prefect", "prefect.main", "sqlalchemy.orm", "sqlalchemy.ext.asyncio", "alembic", "fastapi", "uvicorn")
_begun: _Api | None = None  # the API that `prefect_api_soon` has started and nobody has taken yet


@contextmanager
def prefect_api() -> Iterator[str]:
    """Have a Prefect API inside the `with`, and its URL: the server that PREFECT_API_URL names, else one of our own.

    A UserError says that the servers of `make up` have the databases, a RunError that it did not start.
    """
    configure_environment()
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    standing = PREFECT_API_URL.value()
    if standing:
        with _faults_in_a_sentence():
            yield standing
        return
    with databases_without_server(), _own_server() as api:
        _hand_over()  # to a server that this process asked before
        with temporary_settings({PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: api.login}):
            try:
                with _faults_in_a_sentence():
                    yield api.url
            finally:
                _hand_over()  # after that, the API may go


@contextmanager
def _faults_in_a_sentence() -> Iterator[None]:
    """Turn what Prefect raises inside the `with` if its API fails, or has forgotten the flow run, into a sentence."""
    import httpx  # Prefect is imported, which brings it
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
    """Send what Prefect still holds for the server in this process; what comes later is for the next server.

    `drain_all` is called in another thread: in one that runs an event loop, as a notebook's, it would return a
    coroutine at once.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    with ThreadPoolExecutor(1) as thread:
        for worker in (EventsWorker, APILogWorker):
            thread.submit(worker.drain_all, timeout=time_left(10.0)).result()


@contextmanager
def prefect_api_soon() -> Iterator[None]:
    """Begin, for a `prefect_api` inside the `with`, with the API's start now: it takes seconds.

    It is forked from this process, which has imported then what both want of Prefect, and what MLflow wants too. Not
    in a fresh home: its end may be a kill, which a database that is being made would not survive.
    """
    global _begun
    if os.environ.get("PREFECT_API_URL") or not _locate_mark().exists():
        yield
        return
    with databases_without_server():
        configure_environment()
        with large_imports("prefect"):
            for module in SHARED:
                import_module(module)
        _begun = _Api(forked=True)
        try:
            yield
        finally:
            if _begun is not None:  # nobody has wanted it
                _begun.end(0.0)
                _begun = None


class _Api:
    """The API's process, and the next one where it dies."""

    def __init__(self, forked: bool = False) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.login = f"shepherd:{secrets.token_urlsafe(32)}"  # nobody but this process and the API learns it
        self._ending = False
        self._watcher: threading.Thread | None = None
        self._changing = threading.Lock()  # which process it is, and whether there is to be another one
        self._process = (self._fork() if forked else None) or self._start()

    @property
    def url(self) -> str:
        """The address that it answers at."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/api"

    def ready(self) -> bool:
        """Wait until it answers; False where it does not come to that."""
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT)
        return bool(heard and self._process.stdout.readline())

    def watch(self) -> None:
        """Have it started again whenever it has died; where it no longer starts, this process's command ends."""
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
                emit("stage", {"doing": f"Prefect's API {died}; it is started again"})
                self._process = self._start()
            if not self.ready() and not self._ending:
                emit("stage", {"doing": f"Prefect's API did not start again; its output is in {_log()}"})
                interrupt()
                return

    def end(self, seconds: float) -> None:
        """End it: well, where it does that in time, else at once."""
        with self._changing:
            self._ending = True
        assert self._process.stdin is not None
        self._process.stdin.close()  # it takes that for its end
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
        """Close the pipes of a process that has ended."""
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
    """The file that is there once Prefect's database is whole."""
    return state_folder() / "prefect" / "made"


@contextmanager
def _own_server() -> Iterator[_Api]:
    global _begun
    with ExitStack() as first:
        if not _locate_mark().exists():  # two that make one database take each other's half for whole
            first.enter_context(hold(_locate_mark().with_suffix(".lock"), waiting="makes Prefect's database"))
        api, _begun = _begun or _Api(), None
        ready = api.ready()
        if ready:
            _locate_mark().touch()
    try:
        if not ready:
            raise RunError(f"Prefect's API did not start; its output is in {_log()}")
        api.watch()
        yield api
    finally:
        api.end(time_left(STOP_TIMEOUT))


def serve(login: str, descriptor: int | None = None) -> None:
    """Be the API's process: print the port when it answers, serve until the parent's pipe ends.

    Args:
        login: `user:password` that every request must carry.
        descriptor: Of a socket that listens already; without one it makes its own.
    """
    # A service manager sends SIGTERM to every process, and the flow that it ends still has things to tell us.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with large_imports("prefect.server.api.server"):
        import prefect.server.api.server  # noqa: F401 - `protected_api` takes its name from it
        import uvicorn
        from prefect import settings

    listening = socket.create_server(("127.0.0.1", 0)) if descriptor is None else socket.socket(fileno=descriptor)
    port = listening.getsockname()[1]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Prefect prints is for the log; the pipe carries the port alone
    own = f"http://127.0.0.1:{port}"
    # Prefect keeps each change of state twice, as a state and as an event, and holds every event against automations.
    # Nobody looks at the events of a command's own API, and no automation is waiting for it.
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
        # In the main thread uvicorn would take the signals. Prefect reads the settings again in its requests.
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
