"""A Prefect API for one process, when there is no server: started with the flow, gone with it.

Prefect can start one by itself, but in the terminal's own process group: Ctrl-C would end the API before it hears that
the flow was interrupted, and the flow would wait a minute for it; and after a kill it would be left behind. This one
has a session of its own and ends when the pipe from its parent does, however that comes about.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.home import configure_environment, state_folder
from rlcore.errors import RunError

START_TIMEOUT = 180.0  # seconds; the first start creates the database
STOP_TIMEOUT = 20.0


@contextmanager
def prefect_api() -> Iterator[str]:
    """Have a Prefect API inside the `with`: the server that PREFECT_API_URL names, else one of our own.

    Yields:
        Its URL.

    Raises:
        RunError: it did not start; names its log.
    """
    configure_environment()
    from prefect.settings import PREFECT_API_URL, temporary_settings

    standing = PREFECT_API_URL.value()
    if standing:
        yield standing
        return
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
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    environment = os.environ | {"PYTHONPATH": path, "PREFECT_UI_ENABLED": "false"}
    with open(_log_path(), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.ephemeral"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
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
        worker.drain_all(timeout=10.0)


def _stop(server: subprocess.Popen[bytes]) -> None:
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def serve() -> None:
    """The API's process: print the port when it answers, serve until the parent's pipe ends."""
    import socket

    import uvicorn
    from prefect.server.api.server import create_app

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Prefect prints is for the log; the pipe carries the port alone

    def announce() -> None:
        while not server.started:
            time.sleep(0.02)
        output.write(f"{listening.getsockname()[1]}\n")
        output.close()

    def watch() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True
        time.sleep(STOP_TIMEOUT)
        os._exit(1)

    for job in (announce, watch):
        threading.Thread(target=job, daemon=True).start()
    server.run(sockets=[listening])


if __name__ == "__main__":
    serve()
