"""`make up`: what it refuses before it starts anything, and what it leaves of the user's `.env`."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flows.process.network import unreachable
from flows.workers import servers as served
from flows.workers import up as servers
from rlcore.system.lifeline import alive
from tests.processes import ROOT, free_port, wait_for
from tests.stores import furnish, query


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with free ports."""
    (tmp_path / "prefect.yaml").touch()
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    for key, _ in servers.PORTS.values():
        monkeypatch.setenv(key, str(free_port()))
    # Commands set what is missing of Prefect's and MLflow's settings; other tests are not to find that.
    monkeypatch.setattr(servers, "configure_environment", lambda: None)
    return tmp_path


@pytest.fixture
def foreign() -> Iterator[int]:
    """The port of a program that accepts connections and greets as an SSH server does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=greet, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    assert servers.main(["up"]) == 2
    assert not list(served.folder().glob("*.pid"))  # nothing was started
    return capsys.readouterr().err


@pytest.mark.parametrize("key", ["SHEPHERD_PREFECT_PORT", "SHEPHERD_MLFLOW_PORT"])
def test_a_port_that_another_program_has_is_refused_before_anything_is_started(
    checkout: Path, foreign: int, key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(key, str(foreign))
    assert f"{key}={foreign}: another program has this port; set {key} to a free port" in refused(capsys)


def test_one_port_for_both_servers_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHEPHERD_MLFLOW_PORT", os.environ["SHEPHERD_PREFECT_PORT"])
    assert "Prefect's server has this port" in refused(capsys)


def test_a_server_that_runs_keeps_its_port_and_what_a_killed_one_left_is_ended(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = "import time; time.sleep(600)"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); {child}"
    command = (sys.executable, "-c", program, "--port", "4321")
    up = f"from flows.workers import servers; servers.start(servers.Server('mlflow', {command!r}, {{}}))"
    subprocess.run([sys.executable, "-c", up], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    try:
        assert servers.main(["up"]) == 2
        assert "mlflow is running on port 4321; `make down` first" in capsys.readouterr().err
        (main,) = (pid for pid, _ in served.running())
        pids = wait_for(lambda: len(p := [pid for pid, _ in served.marked()]) == 2 and p, "its child")
        os.kill(main, signal.SIGKILL)
        wait_for(lambda: served.port_of("mlflow") is None, "its end")
        servers._check_ports()
        assert not any(map(alive, pids))
    finally:
        servers.main(["down"])
        assert not list(served.marked())


@pytest.mark.slow
def test_a_server_that_was_away_gives_flow_runs_time_for_a_sign_of_life(checkout: Path) -> None:
    furnish(checkout)
    database = checkout / ".shepherd/prefect/prefect.db"
    insert = """
        insert into automation_bucket (automation_id, trigger_id, bucketing_key, "end", start, count)
        select automation.id, 't', name, '2026-01-01 00:00:00.000000', '2026-01-01 00:00:00.000000', 0 from automation
    """
    rule = """
        insert into automation (id, name, description, enabled, trigger, actions) values (?, ?, '', 1, '{}', '[]')
    """
    with closing(sqlite3.connect(database)) as store, store:
        store.executemany(rule, [("a", servers.RULE), ("b", "the user's own")])
        store.execute(insert)
    servers._forgive_silence()
    left = """
        select (julianday("end") - julianday('now')) * 86400 from automation_bucket order by bucketing_key
    """
    (ours,), (other,) = query(checkout, left)
    assert servers.SILENCE - 10 < ours <= servers.SILENCE
    assert other < 0
    ((stamp,),) = query(checkout, """select "end" from automation_bucket where automation_id = 'a'""")
    assert re.fullmatch(r"[\d-]{10} [\d:]{8}\.\d{6}", stamp)  # as Prefect writes it


def test_what_speaks_no_http_is_a_reason_and_no_exception(foreign: int) -> None:
    assert unreachable(f"http://127.0.0.1:{foreign}/health") == "what answers speaks no HTTP"


def test_our_lines_of_dotenv_come_and_go_and_no_line_of_the_user_does(checkout: Path) -> None:
    path, variables = checkout / ".env", {"PREFECT_API_URL": "http://here", "MLFLOW_TRACKING_URI": "http://there"}
    path.write_text("FIRST=1")
    servers._write_dotenv(variables)
    path.write_text(path.read_text() + "LAST=2\n")
    servers._write_dotenv(variables)
    ours = [servers.BEGIN, "PREFECT_API_URL=http://here", "MLFLOW_TRACKING_URI=http://there", servers.END]
    assert path.read_text().splitlines() == ["FIRST=1", *ours, "LAST=2"]
    path.write_text(path.read_text().replace(f"{servers.END}\n", ""))  # the user has taken it away
    servers._write_dotenv({})
    assert path.read_text() == "FIRST=1\nLAST=2\n"
    path.write_text("")
    servers._write_dotenv(variables)
    servers._write_dotenv({})
    assert not path.exists()
