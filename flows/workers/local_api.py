"""A Prefect API for one process, when there is no server: started with the flow, gone with it.

Prefect can start one by itself, but in the terminal's own process group: Ctrl-C would end the API before it hears that
the flow was interrupted, and the flow would wait a minute for it; and after a kill it would be left behind. This one
heeds no signal but SIGKILL. It ends well when its stdin does, and at once when its parent is
gone (rlcore.system.lifeline).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.process.signals import time_left
from flows.settings import configure_environment, state_folder
from flows.workers.servers import databases_without_server
from rlcore.errors import RunError
from rlcore.system.imports import large_imports
from rlcore.system.lifeline import spawn

START_TIMEOUT = 180.0  # seconds; the first start creates the database
STOP_TIMEOUT = 20.0


@contextmanager
def prefect_api() -> Iterator[str]:
    """Have a Prefect API inside the `with`: the server that PREFECT_API_URL names, else one of our own.

    Yields:
        Its URL.

    Raises:
        UserError: the servers of `make up` run, and this process is not told to use them.
        RunError: it did not start; names its log.
    """
    configure_environment()
    from prefect.settings import PREFECT_API_URL, temporary_settings

    standing = PREFECT_API_URL.value()
    if standing:
        yield standing
        return
    with databases_without_server():
        server = _start()
        try:
            url = f"http://127.0.0.1:{_port(server)}/api"
            with temporary_settings({PREFECT_API_URL: url}):
                try:
                    yield url
                finally:
                    _deliver()
        finally:
            _stop(server)


def _log_path() -> Path:
    return state_folder() / "prefect-server.log"


def _start() -> subprocess.Popen[bytes]:
    with open(_log_path(), "ab") as log:
        return spawn(
            "flows.workers.local_api",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PREFECT_UI_ENABLED": "false"},
            start_new_session=True,
        )


def _port(server: subprocess.Popen[bytes]) -> int:
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], START_TIMEOUT)
    line = server.stdout.readline() if ready else b""
    if not line:
        raise RunError(f"Prefect's API did not start; its output is in {_log_path()}")
    return int(line)


def _deliver() -> None:
    """Hand over what Prefect still holds in this process: after that, the API may go."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=time_left(10.0))


def _stop(server: subprocess.Popen[bytes]) -> None:
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
    try:
        server.wait(time_left(STOP_TIMEOUT))
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def serve() -> None:
    """The API's process: print the port when it answers, serve until the parent's pipe ends."""
    # A service manager sends SIGTERM to every process, and the flow that it ends still has things to tell us.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    import socket

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
