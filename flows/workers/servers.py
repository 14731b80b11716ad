"""Processes that stay after the command that started them: started, found again, ended.

Each, and all that it starts, carries SHEPHERD_SERVED in its environment: that is how they are found, also those that a
command left which was killed, and nothing else.
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
from flows.workers.dotenv import USER, keep_password
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.lifeline import alive

MARK = "SHEPHERD_SERVED"
KIND = "SHEPHERD_SERVER"  # which of them a process is, or was started by
START_TIMEOUT = 180.0  # seconds; the first start creates the databases
STOP_TIMEOUT = 35.0  # seconds; a trainer may use 25 for its checkpoint


@dataclass(frozen=True)
class Server:
    """A process that stays until it is ended."""

    name: str  # "prefect", "mlflow", "worker-local", "worker-gpu-0", ...
    command: tuple[str, ...]
    variables: dict[str, str] = field(repr=False)  # also passwords, which a command line would show to everyone
    health: str = ""  # what answers 200 once it is ready; "" = it need only live


def folder() -> Path:
    """Folder in which the servers' logs and pids lie."""
    path = state_folder() / "servers"
    path.mkdir(parents=True, exist_ok=True)
    return path


def log_of(server: Server) -> Path:
    """Log of a server."""
    return folder() / f"{server.name}.log"


def password_file() -> Path:
    """The file with the password of this home's servers, which only its owner can read."""
    return folder() / "password"


def own_login() -> str:
    """Return `user:password` of this home's servers."""
    return f"{USER}:{keep_password(password_file())}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def start(server: Server) -> bool:
    """Start a server that does not run already; returns whether it was started."""
    if server.name in running():
        return False
    with open(log_of(server), "ab", opener=_private) as output:
        process = subprocess.Popen(
            server.command,
            cwd=home(),
            umask=0o077,  # other users of the machine read none of its databases, logs and runs
            env=os.environ | server.variables | {MARK: str(state_folder()), KIND: server.name, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (folder() / f"{server.name}.pid").write_text(str(process.pid))
    return True


def check_servers() -> None:
    """Before a command makes anything: the Prefect server that PREFECT_API_URL names is there and lets us in.

    Where none is named, the servers of `make up` do not have the databases open that this command would open itself.
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
            f"PREFECT_API_URL={url}: the server there refuses PREFECT_API_AUTH_STRING; of `make up`'s it is in .env"
        )


@contextmanager
def databases_without_server() -> Iterator[None]:
    """Have this home's databases, as other commands without a server may; `make up` is refused, or waited for."""
    with hold(database_lock(), shared=True):
        if running().keys() & {"prefect", "mlflow"}:
            raise UserError(
                "PREFECT_API_URL is not set, and the servers of `make up` have this home's databases open; "
                f"load {home() / '.env'}, or `make down`"
            )
        yield


def wait_until_ready(server: Server) -> None:
    """Wait until a server answers; a RunError that it has ended, or takes too long, names its log."""
    began = time.monotonic()
    while unreachable(server.health):
        if server.name not in running() or time.monotonic() - began > START_TIMEOUT:
            raise RunError(f"{server.name} did not start; what it said is in {log_of(server)}")
        time.sleep(0.2)


def running() -> dict[str, int]:
    """Name -> pid of the servers themselves: those that were noted when they were started, and live."""
    found = {}
    for path in folder().glob("*.pid"):
        with suppress(psutil.Error, ValueError):  # it has ended
            pid = int(path.read_text().split()[0])  # earlier versions wrote more behind it
            if _mark_of(psutil.Process(pid)) == path.stem:  # and the pid was not given to another one
                found[path.stem] = pid
    return found


def remove_stopped() -> None:
    """Take away the notes of servers that have ended."""
    for path in folder().glob("*.pid"):
        if path.stem not in running():
            path.unlink(missing_ok=True)


def find_marked() -> Iterator[tuple[int, str]]:
    """Pid and name of every process that is a server of this home, or was started by one."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            name = _mark_of(process)
            if name is not None and process.pid != os.getpid():
                yield process.pid, name


def _mark_of(process: psutil.Process) -> str | None:
    """Name of the server of this home that a process is, or was started by; None also of a zombie."""
    variables = process.environ()
    return variables.get(KIND, "") if variables.get(MARK) == str(state_folder()) else None


def list_trained() -> list[RunDirectory]:
    """The runs that flow runs of these workers train just now."""
    return [RunDirectory(path) for pid, _ in find_marked() if (path := _word_after("rlcore.train.trainer", pid))]


def port_of(name: str) -> int | None:
    """The port that a server was started with; None when it does not run."""
    pid = running().get(name)
    port = (_word_after("--port", pid) or _word_after("-p", pid)) if pid else None
    return int(port) if port else None


def variable_of(name: str, key: str) -> str | None:
    """A variable of the environment that a server was started with; None when it does not run."""
    pid = running().get(name)
    with suppress(psutil.Error):
        return psutil.Process(pid).environ().get(key, "") if pid else None
    return None


def _word_after(word: str, pid: int) -> str | None:
    """Word that follows a word in the command line of a process; None also when it has ended."""
    with suppress(psutil.Error, ValueError):
        words = psutil.Process(pid).cmdline()
        return words[words.index(word) + 1]
    return None


def why_occupied(port: int) -> str | None:
    """Reason why no server can have a port of this machine; None = it can."""
    try:
        socket.create_server((server_host(), port)).close()
    except OSError as error:
        return "another program has this port" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
    return None


def end(names: tuple[str, ...], number: int) -> None:
    """Signal the servers whose names begin so, and wait until they have ended."""
    _signal([pid for name, pid in running().items() if name.startswith(names)], number, STOP_TIMEOUT)


def stop_leftovers(name: str = "") -> None:
    """Kill what carries the mark of one server, or of any, and wait until it is gone."""
    _signal([pid for pid, kind in find_marked() if name in ("", kind)], signal.SIGKILL, 5.0)


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Look at a condition ten times a second until it holds or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def _signal(pids: list[int], number: int, seconds: float) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    wait_until(lambda: not any(map(alive, pids)), seconds)
