"""Leases that exclude processes on other machines, with a real Prefect server and a killed process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import pytest

from flows.prefect_repairs import leases
from flows.prefect_repairs.leases import LEASE, hold_lease
from flows.process.locks import hold
from rlcore.errors import UserError
from tests.processes import ROOT, answers, free_port, wait_for
from tests.soaking import always, heavy, soak

pytestmark = [pytest.mark.slow, heavy]
HOLDER = """
import sys, time
from pathlib import Path
from flows.prefect_repairs.leases import hold_lease
from flows.process.locks import hold
folder = Path(sys.argv[1])
with hold(folder / "lock"), hold_lease("thing", folder / "lease"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    from prefect.settings import PREFECT_API_AUTH_STRING

    from flows.workers.local_api import prefect_api

    with prefect_api() as url, pytest.MonkeyPatch.context() as patch:  # for child processes
        patch.setenv("PREFECT_API_URL", url)
        patch.setenv("PREFECT_API_AUTH_STRING", PREFECT_API_AUTH_STRING.value() or "")
        yield url


@pytest.fixture
def prefect_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Server as in `make up`, because the server of a single command does not check for expired leases."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    port = free_port()
    kept = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}/api"
    with open(home / "server.log", "wb") as log:
        process = subprocess.Popen(command, env=os.environ | kept, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(lambda: answers(f"{url}/health"), "the server", 180, every=0.2)
        monkeypatch.setenv("PREFECT_API_URL", url)
        with temporary_settings({PREFECT_API_URL: url}):
            yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.0)
    monkeypatch.setattr(leases, "ASK_EVERY", 0.05)


def set_hostname(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)


def limits() -> set[str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return {limit.name for limit in client.read_global_concurrency_limits(limit=100, offset=0)}


@always
def test_hold_lease_refuses_other_machine_until_release(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "lease"
    set_hostname("one", monkeypatch)
    with hold_lease("run-1", note, "trains it"):
        set_hostname("two", monkeypatch)
        with pytest.raises(UserError, match="^a process on one trains it$"), hold_lease("run-1", note, "trains it"):
            pass
        with hold_lease("run-2", tmp_path / "other", "trains it"):
            assert limits() == {"shepherd-run-1", "shepherd-run-2"}
    with hold_lease("run-1", note, "trains it"):
        assert "two" in note.read_text()
    assert not note.exists() and not limits()  # the limits of runs are deleted


def test_hold_lease_waits_and_excludes_others(server: str, tmp_path: Path) -> None:
    inside, most = 0, 0

    def use_registry(number: int) -> None:
        nonlocal inside, most
        with hold_lease("registry", tmp_path / f"of-machine-{number}"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.1)
            inside -= 1

    use_registry(0)  # creates the limit, because concurrent creation would wait for retries
    machines = [threading.Thread(target=copy_context().run, args=(use_registry, number)) for number in range(3)]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(60)
    assert (inside, most) == (0, 1)


def start_and_kill_holder(folder: Path) -> None:
    """Start a process that holds the lease `thing`, with its note in the folder, and kill it."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    holder = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()


def test_hold_lease_of_killed_holder_is_free_locally(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_and_kill_holder(tmp_path)
    here = socket.gethostname()
    set_hostname("elsewhere", monkeypatch)
    with (
        pytest.raises(UserError, match=f"a process on {here} has it"),
        hold_lease("thing", tmp_path / "lease", "has it"),
    ):
        pass
    set_hostname(here, monkeypatch)
    with hold(tmp_path / "lock"), hold_lease("thing", tmp_path / "lease", "has it"):
        assert "shepherd-thing" in limits()


@soak
def test_hold_lease_of_lost_machine_expires(
    prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_and_kill_holder(tmp_path)
    set_hostname("elsewhere", monkeypatch)
    monkeypatch.setattr(leases, "PATIENCE", 90.0)
    began = time.monotonic()
    with hold_lease("thing", tmp_path / "lease", "has it"):
        assert LEASE - 15 < time.monotonic() - began < 90


@soak
def test_hold_lease_is_renewed_while_held(prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_lease("long", tmp_path / "lease", "has it"):
        time.sleep(LEASE + 30)
        set_hostname("elsewhere", monkeypatch)
        with pytest.raises(UserError, match="has it"), hold_lease("long", tmp_path / "lease", "has it"):
            pass


def test_hold_lease_ignores_missing_server(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with hold_lease("run", tmp_path / "lease", "trains it"):
        assert not list(tmp_path.iterdir())
    from prefect.settings import PREFECT_API_URL, temporary_settings

    url = "http://127.0.0.1:9/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    with temporary_settings({PREFECT_API_URL: url}), hold_lease("run", tmp_path / "lease", "trains it"):
        assert "only the lock file excludes others" in caplog.text
