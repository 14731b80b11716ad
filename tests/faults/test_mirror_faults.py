"""MLflow has every point once after kills and outages, and training never waits for it."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.tracking import mirror
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.flows.synthetic_runs import synthetic_run, train_a_while
from tests.processes import answers, environment, free_port, kill_all, orphans, processes, wait_for
from tests.retries import Patience, run_command
from tests.soaking import heavy, soak

SEED = random.randrange(10_000)
pytestmark = [pytest.mark.slow, heavy]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "_MLFLOW_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    yield tmp_path
    kill_all(tmp_path)


def stored(database: Path) -> list[tuple[str, int, float]]:
    """All points including duplicates, read directly from SQLite."""
    with sqlite3.connect(database) as store:
        return sorted(store.execute("select key, step, value from metrics").fetchall())


def expected(run: RunDirectory) -> list[tuple[str, int, float]]:
    events = [e for e in read_events(run.events) if e["kind"] == "metrics"]
    return sorted((name, e["policy_steps"], value) for e in events for name, value in e["values"].items())


def run_with_store(folder: Path, uri: str) -> RunDirectory:
    logger = {"name": "mlflow", "experiment_name": None, "tracking_uri": uri}
    run = synthetic_run(folder / "run", folder.name, metric={"log_level": 1, "logger": logger})
    train_a_while(run, 0, 2000)
    return run


# One process imports MLflow, which takes most of the time of a mirror, and forks children that are killed.
KILLED = """
    import os, random, signal, sys, time
    from flows.settings import configure_environment, tracking_uri
    from flows.tracking import mirror, mlflow_points
    from flows.tracking.mlflow_store import prepare_store
    from rlcore.store.directory import RunDirectory
    from rlcore.store.events import read_events
    path, rng = sys.argv[1], random.Random(int(sys.argv[2]))
    configure_environment()
    prepare_store(tracking_uri())
    mlflow_points.BATCH_METRICS = 25
    os.nice, killed, longest = (lambda by: 0), 0, 3.0
    while killed < 6:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(mirror.main([path]))
        time.sleep(rng.uniform(0.0, longest))
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            killed += 1
        else:  # it had finished: add points, and wait less
            longest *= 0.7
            from tests.flows.synthetic_runs import train_a_while
            step = 1 + max((e.get("policy_steps", 0) for e in read_events(RunDirectory(path).events)))
            train_a_while(RunDirectory(path), step, step + 4000)
    sys.exit(mirror.main([path]))
"""


def test_killed_mirror_writes_points_once(home: Path) -> None:
    print("seed", SEED)
    run = synthetic_run(home / "run", "killed")
    train_a_while(run, 0, 20_000)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(run.path), str(SEED)]
    done = run_command(command, env=environment(home), text=True)
    assert done.returncode == 0, done.stderr
    assert stored(home / ".shepherd" / "mlflow.db") == expected(run)
    with sqlite3.connect(home / ".shepherd" / "mlflow.db") as store:
        assert store.execute("select count(*) from runs").fetchone() == (1,)


def test_mirror_of_silent_store_never_blocks_training(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and sends nothing
        run = run_with_store(home, f"http://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        mirror.mirror_in_background(run)
        mirror.mirror_in_background(run)
        assert time.monotonic() - began < 15  # MLflow waits for at least 20 s
        silent.settimeout(60)
        connection, _ = silent.accept()  # the mirror waits for a response now
        mirror.mirror_in_background(run)
        assert [p.kind for p in processes(home)] == ["mirror"]  # one at a time
        monkeypatch.setattr(mirror, "SETTLE", 0.5)
        began = time.monotonic()
        mirror.settle()
        assert 0.4 < time.monotonic() - began < 15
        connection.close()
    assert not orphans(home)
    assert "MLflow is behind: not up to date when the command ended" in run.log.read_text()


@soak
def test_mirror_of_slow_server_writes_points_once(home: Path) -> None:
    port = free_port()
    early = run_with_store(home / "early", f"http://127.0.0.1:{port}")
    # Without a server, the log has a message with the reason.
    assert not mirror.finish_mirror(early, timeout=60)
    assert "MLflow is behind" in early.log.read_text()
    with mlflow_server(home, port) as database, delayed(port, seconds=0.2) as slow:
        assert mirror.finish_mirror(early)
        assert stored(database) == expected(early)
        run = run_with_store(home / "late", f"http://127.0.0.1:{slow}")
        longest, step = 0.0, 2000
        patience = Patience(idle=60.0)
        # Training continues to write points while they are mirrored.
        while len(stored(database)) < len(expected(early)) + 100:
            assert not patience.over
            began = time.monotonic()
            mirror.mirror_in_background(run, every=0.2)
            longest = max(longest, time.monotonic() - began)
            train_a_while(run, step, step + 100)
            step += 100
            time.sleep(0.2)
        assert longest < 2.0  # a mirror through this port takes more than 4 s; the call only starts its process
        assert mirror.finish_mirror(run)
        mirror.settle()
        assert stored(database) == sorted(expected(early) + expected(run))
        assert not run.log.exists()


@contextlib.contextmanager
def mlflow_server(home: Path, port: int) -> Iterator[Path]:
    """Run a real MLflow server on a port; yields its database."""
    database = home / "server.db"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(home / "artifacts")]
    variables = environment(home, MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false")  # eight processes fewer
    server = subprocess.Popen(command + stores, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        health = f"http://127.0.0.1:{port}/health"
        wait_for(lambda: answers(health), f"an answer of {health}", every=0.2)
        yield database
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """Yields another port that forwards to this one with a delay of `seconds`."""

    def forward(source: socket.socket, sink: socket.socket, delay: float) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(delay)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def relay(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=forward, args=(server, client, 0.0))
            back.start()
            forward(client, server, seconds)
            back.join()

    def accept(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                relays.append(threading.Thread(target=relay, args=(listening.accept()[0],)))
                relays[-1].start()

    relays: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, args=(listening,))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for one in (thread, *relays):
            one.join(30)
