"""Real commands, their processes by psutil, and moments at which tests act on them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from flows.process.network import unreachable
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.run_trainer import RunTrainer
from tests.retries import Patience, output_of, run_command
from tests.retries import wait_for as wait_for

NO_STORE = {"MLFLOW_TRACKING_URI": "sqlite:////dev/null/mlflow.db"}  # a mirror detects this before it imports MLflow
ROOT = Path(__file__).resolve().parents[1]
LOOK = 0.1  # seconds between two looks at all processes, each of which takes hundredths of a second
TINY = [
    "exp=ppo",
    "env.num_envs=2",
    "env.capture_video=false",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=32",
    "algo.update_epochs=1",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.baseline_episodes=2",
    "evaluation.num_envs=2",
]


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SHEPHERD_", "PREFECT_", "MLFLOW_"))}
    path = os.pathsep.join([str(ROOT), *([more.pop("PYTHONPATH")] if "PYTHONPATH" in more else [])])
    return kept | {"SHEPHERD_HOME": str(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DISPLAY": ""} | more


def changed(base: Sequence[str], *overrides: str) -> list[str]:
    """Return overrides with other values for some keys, and with more keys."""
    keys = {override.partition("=")[0] for override in overrides}
    return [override for override in base if override.partition("=")[0] not in keys] + list(overrides)


def shepherd(*arguments: str) -> list[str]:
    """Return the command line of a `shepherd` command."""
    return [sys.executable, "-m", "flows.cli.main", *arguments]


def start(home: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start `shepherd ARGUMENTS` in `home`, by which its processes are found, in its own process group."""
    return subprocess.Popen(
        shepherd(*arguments),
        cwd=home,
        env=environment(home, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    state: str
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Trainer, worker, local_api, mirror, cli, or the command itself; empty between a fork and its program."""
        module = next((word for word in self.words if word.startswith(("rlcore.", "flows."))), "")
        if module == "rlcore.system.lifeline":
            module = self.words[self.words.index(module) + 2]
        prefixes = {"flows.cli.": "cli", "flows.tracking": "mirror", "rlcore.train.server": "trainer"}
        named = next(
            (name for prefix, name in prefixes.items() if module.startswith(prefix)), module.rpartition(".")[2]
        )
        return named or next(iter(self.words), "")


def processes(home: Path) -> list[Process]:
    """Return all living processes started for this home by anyone: also orphans and those of other sessions."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            if process.environ().get("SHEPHERD_HOME") == str(home) and process.status() not in ("zombie", "dead"):
                words = ("flows.workers.local_api",) if process.name() == "prefect-api" else process.cmdline()
                found.append(Process(process.pid, process.ppid(), process.status(), tuple(words)))
    servers = {p.pid for p in found if "rlcore.system.fork_server" in p.words}
    # A fork has its server's command line.
    return [replace(p, words=("rlcore.train.server",)) if p.parent in servers else p for p in found]


def free_port() -> int:
    """Return a port on which nothing listens, and that the system assigns to no connection."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # Linux assigns those from 32768 on
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(url: str) -> bool:
    """Return whether a server answers there now."""
    return unreachable(url) is None


def one(home: Path, kind: str) -> int:
    """Return the PID of the process of a kind, once it exists."""
    return wait_for(lambda: next((p.pid for p in processes(home) if p.kind == kind), None), f"a {kind}", every=LOOK)


def orphans(home: Path, within: float = 2.0) -> list[Process]:
    """Return processes still alive after `within` idle seconds; those that keep working have a minute."""
    patience = Patience(within, limit=60.0)
    while (found := processes(home)) and not patience.over:
        time.sleep(0.02)
    return found


def count(run: RunDirectory, kind: str) -> int:
    return sum(event["kind"] == kind for event in read_events(run.events))


def digest_of(run: RunDirectory) -> str:
    """Return the digest of the newest checkpoint."""
    return checkpoint.manifest(checkpoint.resolve(run, "latest"))["digest"]


def finish_here(run: RunDirectory) -> str:
    """Train a new or interrupted run to its end in this process; return the digest of its last checkpoint."""
    session = RunTrainer(run)
    try:
        while not (boundary := session.advance(lambda said: None)).done:
            if "checkpoint" in boundary.due:
                session.save()
        return session.save()["digest"]
    finally:
        session.close()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit code and stderr."""
    said = output_of(process)[1]
    return process.returncode, said


def kill_all(home: Path) -> None:
    """Kill everything of this home; frozen first, so that no process sees another die."""
    frozen: set[int] = set()
    while (now := {process.pid for process in processes(home)}) - frozen:  # until no new process was started meanwhile
        for pid in now:
            send(pid, signal.SIGSTOP)
        frozen |= now
    for pid in frozen:
        send(pid, signal.SIGKILL)


PARTING = """
import os, sys, traceback
exec(sys.argv[1])
children = []
for program in sys.argv[2:]:
    children.append(os.fork())
    if children[-1] == 0:
        try:
            exec(program, {})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def at_once(imports: str, *programs: str) -> list[int]:
    """Run programs at the same time, each in its own process; return their exit codes.

    They fork after the imports, which take seconds and must be only import statements.
    """
    command = [sys.executable, "-c", PARTING, imports, *map(textwrap.dedent, programs)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_command(command, env=variables, stderr=None, text=True, check=True)
    return [int(code) for code in done.stdout.split("\n")[-2].split()]


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
