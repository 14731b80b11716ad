"""A Prefect API for one process, when there is no server: started with the flow, gone with it.

Prefect can start one by itself, but in the terminal's own process group: Ctrl-C would end the API before it hears that
the flow was interrupted, and the flow would wait a minute for it; and after a kill it would be left behind. This one
heeds no signal but SIGKILL. It ends well when its stdin does, and at once when its parent is gone
(rlcore.system.lifeline).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.process.signals import time_left
from flows.settings import configure_environment, state_folder
from flows.workers.servers import START_TIMEOUT, databases_without_server
from rlcore.errors import RunError
from rlcore.system.imports import large_imports
from rlcore.system.lifeline import spawn

STOP_TIMEOUT = 20.0  # seconds
_begun: subprocess.Popen[bytes] | None = None  # the API that `prefect_api_soon` has started and nobody has taken yet


@contextmanager
def prefect_api() -> Iterator[str]:
    """Have a Prefect API inside the `with`, and its URL: the server that PREFECT_API_URL names, else one of our own.

    A UserError says that the servers of `make up` have the databases, a RunError that it did not start.
    """
    configure_environment()
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_URL, temporary_settings

    standing = PREFECT_API_URL.value()
    if standing:
        yield standing
        return
    with databases_without_server(), _own_server() as url, temporary_settings({PREFECT_API_URL: url}):
        try:
            yield url
        finally:  # what Prefect still holds in this process is handed over: after that, the API may go
            for worker in (EventsWorker, APILogWorker):
                worker.drain_all(timeout=time_left(10.0))


@contextmanager
def prefect_api_soon() -> Iterator[None]:
    """Begin, for a `prefect_api` inside the `with`, with the API's start now: it takes seconds.

    Not in a fresh home: its end may be a kill, which a database that is being made would not survive.
    """
    global _begun
    if os.environ.get("PREFECT_API_URL") or not (state_folder() / "prefect" / "prefect.db").exists():
        yield
        return
    with databases_without_server():
        _begun = _start()
        try:
            yield
        finally:
            if _begun is not None:  # nobody has wanted it
                _begun.kill()
                _begun.communicate()
                _begun = None


def _start() -> subprocess.Popen[bytes]:
    with open(_log(), "ab") as log:
        return spawn(
            "flows.workers.local_api",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PREFECT_UI_ENABLED": "false"},
            start_new_session=True,
        )


def _log() -> Path:
    return state_folder() / "prefect-server.log"


@contextmanager
def _own_server() -> Iterator[str]:
    global _begun
    server, _begun = _begun or _start(), None
    try:
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], START_TIMEOUT)
        port = server.stdout.readline() if ready else b""
        if not port:
            raise RunError(f"Prefect's API did not start; its output is in {_log()}")
        yield f"http://127.0.0.1:{int(port)}/api"
    finally:
        try:
            server.communicate(timeout=time_left(STOP_TIMEOUT))  # closes its stdin
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def serve() -> None:
    """The API's process: print the port when it answers, serve until the parent's pipe ends."""
    # A service manager sends SIGTERM to every process, and the flow that it ends still has things to tell us.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with large_imports("prefect.server"):
        import uvicorn
        from prefect.server.api.server import create_app

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Prefect prints is for the log; the pipe carries the port alone

    # In the main thread uvicorn would take the signals.
    running = threading.Thread(target=server.run, args=([listening],), daemon=True)
    running.start()
    while running.is_alive() and not server.started:
        time.sleep(0.02)
    if server.started:
        output.write(f"{listening.getsockname()[1]}\n")
    output.close()
    sys.stdin.buffer.read()
    server.should_exit = True
    running.join(STOP_TIMEOUT)
    os._exit(0)


if __name__ == "__main__":
    serve()
