"""Prefect's API without a server: it is restarted if it dies; if it dies again, the command ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flows.process.locks import hold
from flows.process.signals import TrainingInterrupted, terminable
from flows.runs.listeners import subscribe
from flows.workers import local_api
from rlcore.errors import MachineFault, RunError
from tests.soaking import always, heavy

pytestmark = heavy


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    (tmp_path / ".shepherd").mkdir()
    received: list[str] = []
    with subscribe(lambda kind, facts: received.append(facts["doing"])):
        yield received


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """All processes started in place of the API: each accepts connections and sends its pid; the third fails."""
    serving = (
        "import os, select, socket, sys\n"
        "listening = socket.socket(fileno=int(sys.argv[1]))\n"
        "print(listening.getsockname()[1], flush=True)\n"
        "while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:\n"
        "    listening.accept()[0].sendall(str(os.getpid()).encode())\n"
    )
    started: list[subprocess.Popen[bytes]] = []

    def spawn(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        script = serving if len(started) < 2 else "raise SystemExit(3)"
        started.append(subprocess.Popen([sys.executable, "-S", "-c", script, *arguments], **options))
        return started[-1]

    monkeypatch.setattr(local_api, "spawn", spawn)
    return started


def answering(url: str) -> int:
    """Pid of the process that answers at a URL; waits until there is one."""
    host, port = url.removeprefix("http://").removesuffix("/api").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as asked:
        return int(asked.recv(100))


@always
def test_own_server_restarts_at_same_address(messages: list[str], stand_in: list[Any]) -> None:
    with terminable(), local_api._own_server() as api:
        first = answering(api.url)
        os.kill(first, signal.SIGKILL)
        second = answering(api.url)  # without a pause: no connection is refused in between
        assert second == stand_in[1].pid != first
        assert "Prefect's API was killed by signal 9; restarting it" in messages
    assert stand_in[1].wait(60) == 0


def test_own_server_failed_restart_interrupts_command(messages: list[str], stand_in: list[Any]) -> None:
    with pytest.raises(TrainingInterrupted), terminable(), local_api._own_server() as api:
        for _ in range(2):
            os.kill(answering(api.url), signal.SIGKILL)
        threading.Event().wait(60)
    assert "did not restart; see" in messages[-1]


def test_own_server_waits_for_database_creation(messages: list[str], stand_in: list[Any]) -> None:
    def serve() -> None:
        with local_api._own_server():
            pass

    second = threading.Thread(target=serve)
    with hold(local_api._locate_mark().with_suffix(".lock")):
        second.start()
        second.join(0.3)
        assert second.is_alive() and not stand_in
    second.join(60)
    assert len(stand_in) == 1 and local_api._locate_mark().exists()


@always
def test_own_server_failed_start_raises_run_error(messages: list[str], stand_in: list[Any]) -> None:
    stand_in.extend([None, None])
    with pytest.raises(RunError, match="Prefect's API did not start"), local_api._own_server():
        raise AssertionError("unreachable")


@always
def test_hand_over_waits_in_running_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect._internal.concurrency.services import QueueService

    class Worker(QueueService[str]):
        handled: ClassVar[list[str]] = []

        async def _handle(self, item: str) -> None:
            await asyncio.sleep(0.1)
            self.handled.append(item)

    for name in ("prefect.events.worker.EventsWorker", "prefect.logging.handlers.APILogWorker"):
        monkeypatch.setattr(name, Worker)

    async def notebook() -> None:
        Worker.instance().send("the end of a flow run")
        local_api._hand_over()
        assert Worker.handled == ["the end of a flow run"]

    asyncio.run(notebook())


@pytest.mark.slow
def test_prefect_client_survives_api_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.stores import furnish

    furnish(tmp_path)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with local_api.prefect_api() as url:
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            before = client.create_flow_from_name("watched")
            api = next(p for p in children() if "flows.workers.local_api" in p.cmdline())
            api.kill()
            assert client.read_flow(before).name == "watched"
            assert str(client.api_url).startswith(url)


@pytest.mark.slow
def test_prefect_api_serves_home_of_each_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook trains twice, the second time in another home; changes of state are stored, their events are not."""
    from tests.stores import furnish, query

    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI"):
        os.environ.pop(name, None)
    for home in (tmp_path / "first", tmp_path / "second"):
        furnish(home)
        os.environ["SHEPHERD_HOME"] = str(home)
        with local_api.prefect_api():
            from prefect import flow, task

            flow(lambda: task(lambda: 1, name="task")(), name=home.name)()
        assert query(home, "select state_type from task_run") == [("COMPLETED",)]
        assert query(home, "select name from flow") == [(home.name,)]
        assert query(home, "select event from events") == []


def children() -> list[Any]:
    import psutil

    return psutil.Process().children()


@pytest.mark.parametrize("lost", ["deleted", "away", "locked"])
def test_lost_flow_run_or_api_raises_machine_fault(lost: str) -> None:
    import httpx
    from prefect.exceptions import ObjectNotFound

    request = httpx.Request("POST", "http://127.0.0.1:9/api")
    errors = {
        "deleted": (ObjectNotFound(Exception("404")), "was deleted from Prefect's database"),
        "away": (httpx.ConnectError("refused", request=request), "does not answer, or its database is locked"),
        "locked": (
            httpx.HTTPStatusError("busy", request=request, response=httpx.Response(503, request=request)),
            "does not answer, or its database is locked",
        ),
    }
    error, expected = errors[lost]
    with pytest.raises(MachineFault, match=expected), local_api._faults_in_a_sentence():
        raise error
    refused = httpx.HTTPStatusError("no", request=request, response=httpx.Response(401, request=request))
    with pytest.raises(httpx.HTTPStatusError), local_api._faults_in_a_sentence():
        raise refused
