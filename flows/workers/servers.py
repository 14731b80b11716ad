"""Background server processes: start, find and stop them.

A server continues to run after the command that starts it has ended. The server and all its child processes have the
environment variable SHEPHERD_SERVED. Later commands find these processes by the variable, even if the command that
started them was killed.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.process.locks import hold
from flows.process.network import unreachable
from flows.settings import database_lock, home, server_host, state_folder
from flows.workers.guard import USER, keep_password
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import alive

MARK = "SHEPHERD_SERVED"  # environment variable of the same processes: state folder of the SHEPHERD_HOME
KIND = "SHEPHERD_SERVER"  # environment variable of a server and the processes it starts: name of the server
START_TIMEOUT = 180.0  # seconds; the first start creates the databases
STOP_TIMEOUT = 35.0  # seconds; a trainer may need 25 for its checkpoint


@dataclass(frozen=True)
class Server:
    """Server or worker that runs in the background until `make down` stops it."""

    name: str  # "prefect", "mlflow", "worker-local", "worker-gpu-0", ...
    command: tuple[str, ...]
    variables: dict[str, str] = field(repr=False)  # includes passwords, because all users can read command lines
    health: str = ""  # URL that answers 200 if the server is ready; "": the server is ready if its process is alive


def folder() -> Path:
    """Return the folder that contains the logs and pid files of the servers; create it if it does not exist."""
    path = state_folder() / "servers"
    path.mkdir(parents=True, exist_ok=True)
    return path


def log_of(server: Server) -> Path:
    """Return the log file of a server."""
    return folder() / f"{server.name}.log"


def password_file() -> Path:
    """Return the path of the password file of this SHEPHERD_HOME's servers. Only its owner can read it."""
    return folder() / "password"


def own_login() -> str:
    """Return "user:password" of the servers of this SHEPHERD_HOME; create the password if there is none."""
    return f"{USER}:{keep_password(password_file())}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def start(server: Server) -> bool:
    """Start a server in the background and return True; return False if it is already running."""
    if server.name in running():
        return False
    with open(log_of(server), "ab", opener=_private) as output:
        process = subprocess.Popen(
            server.command,
            cwd=home(),
            umask=0o077,  # other users of the machine cannot read its databases, logs and runs
            env=os.environ | server.variables | {MARK: str(state_folder()), KIND: server.name, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (folder() / f"{server.name}.pid").write_text(str(process.pid))
    return True


def check_servers() -> None:
    """Check that Prefect can be used. A command calls this before it writes anything.

    If PREFECT_API_URL is set, that server must answer and accept the password. Otherwise, the command opens the
    databases without a server, so the servers of `make up` must not be using them.

    Raises:
        UserError: One of these conditions is not met.
    """
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url:
        with databases_without_server():
            return
    if reason := unreachable(f"{url}/health"):
        raise UserError(
            f"PREFECT_API_URL={url}: no Prefect server answers there ({reason}); "
            "start it, or unset the variable to run without a server"
        )
    login = os.environ.get("PREFECT_API_AUTH_STRING", "")
    if not os.environ.get("PREFECT_API_KEY") and unreachable(f"{url}/admin/version", login) == "Unauthorized":
        raise UserError(
            f"PREFECT_API_URL={url}: the server refuses PREFECT_API_AUTH_STRING; "
            "for the server of `make up`, the correct value is in .env"
        )


@contextmanager
def databases_without_server() -> Iterator[None]:
    """Context manager that reserves the SQLite databases of this SHEPHERD_HOME for commands without a server.

    Several commands can reserve the databases at the same time. During this time, `make up` ends with an error. If
    `make up` is starting its servers at the moment, the context waits for it. Raises UserError if the servers of
    `make up` are running.
    """
    with hold(database_lock(), shared=True):
        if running().keys() & {"prefect", "mlflow"}:
            raise UserError(
                "PREFECT_API_URL is not set, and the servers of `make up` have this home's databases open; "
                f"load {home() / '.env'} to use these servers, or stop them with `make down`"
            )
        yield


def wait_until_ready(server: Server) -> None:
    """Wait until a server answers its health check. Raises RunError if it has ended or takes longer than 180 s."""
    began = time.monotonic()
    while unreachable(server.health):
        if server.name not in running() or time.monotonic() - began > START_TIMEOUT:
            raise RunError(f"{server.name} did not start; see {log_of(server)}")
        time.sleep(0.2)


def running() -> dict[str, int]:
    """Return the running servers: name -> pid. Servers without a pid file, and child processes, are not included."""
    pids = {}
    for path in folder().glob("*.pid"):
        with suppress(psutil.Error, ValueError):  # the process has ended
            pid = int(path.read_text())
            if _mark_of(psutil.Process(pid)) == path.stem:  # False if the pid now belongs to another process
                pids[path.stem] = pid
    return pids


def remove_stopped() -> None:
    """Remove the pid files of servers that have ended."""
    for path in folder().glob("*.pid"):
        if path.stem not in running():
            path.unlink(missing_ok=True)


def find_marked() -> Iterator[tuple[int, str]]:
    """Yield (pid, server name) of every process that is a server of this SHEPHERD_HOME, or a descendant of one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            name = _mark_of(process)
            if name is not None and process.pid != os.getpid():
                yield process.pid, name


def _mark_of(process: psutil.Process) -> str | None:
    """Return the name of the server to which a process belongs, according to its environment variables.

    Return None if the process is neither a server of this SHEPHERD_HOME nor a descendant of one.
    """
    variables = process.environ()
    return variables.get(KIND, "") if variables.get(MARK) == str(state_folder()) else None


def list_trained() -> list[RunDirectory]:
    """Return the runs that are being trained by workers of `make up` on this machine."""
    return [RunDirectory(path) for pid, _ in find_marked() if (path := _word_after("rlcore.train.server", pid))]


def port_of(name: str) -> int | None:
    """Return the port in the command line of a running server; None if the server is not running."""
    pid = running().get(name)
    port = (_word_after("--port", pid) or _word_after("-p", pid)) if pid else None
    return int(port) if port else None


def variable_of(name: str, key: str) -> str | None:
    """Return the value of an environment variable of a running server; None if the server is not running."""
    pid = running().get(name)
    with suppress(psutil.Error):
        return psutil.Process(pid).environ().get(key, "") if pid else None
    return None


def _word_after(word: str, pid: int) -> str | None:
    """Return the argument that follows `word` in the command line of a process.

    Return None if the command line does not contain `word`, or if the process has ended.
    """
    with suppress(psutil.Error, ValueError):
        words = psutil.Process(pid).cmdline()
        return words[words.index(word) + 1]
    return None


def why_occupied(port: int) -> str | None:
    """Return the reason why a new server cannot listen on a port of this machine; None if it can."""
    try:
        socket.create_server((server_host(), port)).close()
    except OSError as error:
        return "another program uses this port" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return None


def end(names: tuple[str, ...], number: int) -> None:
    """Send a signal to servers and wait until they have ended, at most 35 s.

    Args:
        names: beginnings of the names of the servers.
        number: number of the signal.
    """
    _signal([pid for name, pid in running().items() if name.startswith(names)], number, STOP_TIMEOUT)


def stop_leftovers(name: str = "") -> None:
    """Kill all processes of a server, including descendants, and wait until they have ended.

    Args:
        name: name of the server; "" = all servers of this SHEPHERD_HOME.
    """
    _signal([pid for pid, kind in find_marked() if name in ("", kind)], signal.SIGKILL, 5.0)


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition returns True, for at most `seconds`; it is checked ten times per second."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def _signal(pids: list[int], number: int, seconds: float) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    wait_until(lambda: not any(map(alive, pids)), seconds)
