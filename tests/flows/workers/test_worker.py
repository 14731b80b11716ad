"""The worker of `make up`: its slots, server outages, flow runs without heartbeats, and its restarts."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.workers.process import ProcessWorker, ProcessWorkerResult

from flows.prefect_repairs import worker as repaired
from flows.prefect_repairs.lost_runs import GAP, LIMIT, LIMIT_TAKEN, Heartbeat, HeartbeatMonitor
from flows.workers.pools import DRIVERS
from flows.workers.restart import LONGEST, pause
from flows.workers.worker import ShepherdWorker
from tests.processes import ROOT, wait_for

RUN, OTHER = UUID(int=1), UUID(int=2)
THEN = datetime(2026, 1, 1, tzinfo=UTC)


def test_worker_retry_waits_for_earlier_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (FlowRun(id=uuid4(), flow_id=uuid4()) for _ in range(2))
    sweep = FlowRun(id=uuid4(), flow_id=uuid4(), work_queue_name=DRIVERS)
    started: list[UUID] = []
    ends: list[asyncio.Event] = []

    async def process(self: Any, flow_run: FlowRun, *_: Any) -> ProcessWorkerResult:
        started.append(flow_run.id)
        ends.append(asyncio.Event())
        await ends[-1].wait()
        return ProcessWorkerResult(identifier="1", status_code=0)

    async def scene() -> None:
        worker = ShepherdWorker("gpu", "w", limit=1)
        attempts: list[Any] = []

        async def submit(flow_run: FlowRun) -> None:
            worker._submitting_flow_run_ids.discard(flow_run.id)  # Prefect's worker does this once the process runs
            await worker.run(flow_run, None)  # pyright: ignore[reportArgumentType]

        def start_soon(_: Any, flow_run: FlowRun) -> None:
            attempts.append(asyncio.ensure_future(submit(flow_run)))

        worker._runs_task_group = SimpleNamespace(start_soon=start_soon)  # pyright: ignore[reportAttributeAccessIssue]

        async def poll(*due: FlowRun) -> list[UUID]:
            waiting: Any = [SimpleNamespace(flow_run=flow_run) for flow_run in due]
            taken = await worker._submit_scheduled_flow_runs(waiting)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return [flow_run.id for flow_run in taken]

        assert await poll(first, second) == [first.id]
        assert await poll(second, sweep) == [sweep.id]  # a sweep takes no slot and waits for none
        assert await poll(first, second) == []  # crashed and retried; Prefect still runs its hooks
        ends[0].set()
        await attempts[0]
        assert await poll(first, second) == [first.id]
        ends[2].set()
        await attempts[2]
        assert await poll(second) == [second.id]
        for end in (ends[1], ends[3]):
            end.set()
        await asyncio.gather(*attempts)

    monkeypatch.setattr(ProcessWorker, "run", process)
    monkeypatch.setattr(ShepherdWorker, "_refusal", lambda *_: "")
    monkeypatch.setattr(
        ShepherdWorker, "get_flow_run_logger", lambda *_: logging.getLogger("test")
    )  # Prefect's logger sends to its API
    asyncio.run(scene())
    assert started == [first.id, sweep.id, first.id, second.id]


@pytest.mark.parametrize("status", [None, 503])
def test_worker_survives_server_outage(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:9/api")
    away = httpx.ConnectError("refused", request=request)
    fails = httpx.HTTPStatusError("busy", request=request, response=httpx.Response(503, request=request))

    async def refuse(self: Any, *_: Any) -> None:
        raise fails if status else away

    for method in ("get_and_submit_flow_runs", "sync_with_backend"):
        monkeypatch.setattr(ProcessWorker, method, refuse)
    worker = ShepherdWorker("local", "w")
    assert asyncio.run(worker.get_and_submit_flow_runs()) == []
    asyncio.run(worker.sync_with_backend())


def test_worker_raises_when_unauthorized(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:9/api")

    async def refuse(self: Any) -> None:
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(401, request=request))

    monkeypatch.setattr(ProcessWorker, "get_and_submit_flow_runs", refuse)
    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(ShepherdWorker("local", "w").get_and_submit_flow_runs())


def test_heartbeat_monitor_reports_silent_flow_run() -> None:
    silence = HeartbeatMonitor()
    now = 0.0
    while now <= LIMIT:
        assert silence.too_long({RUN: Heartbeat(THEN), OTHER: Heartbeat(THEN + timedelta(seconds=now))}, now) == []
        now += 30.0
    assert silence.too_long({RUN: Heartbeat(THEN), OTHER: Heartbeat(THEN + timedelta(seconds=now))}, now) == [RUN]


def test_heartbeat_monitor_allows_longer_start() -> None:
    silence = HeartbeatMonitor()
    now = 0.0
    while now <= LIMIT_TAKEN:
        assert silence.too_long({RUN: Heartbeat(THEN, LIMIT_TAKEN)}, now) == []
        now += 30.0
    assert silence.too_long({RUN: Heartbeat(THEN, LIMIT_TAKEN)}, now) == [RUN]


def test_worker_retry_waits_for_earlier_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows of a killed worker save a checkpoint before they end, and hold their locks until then."""
    again, new = FlowRun(id=uuid4(), flow_id=uuid4(), run_count=1), FlowRun(id=uuid4(), flow_id=uuid4())
    left = {again.id}

    async def submit(self: Any, due: list[Any]) -> list[FlowRun]:
        return [one.flow_run for one in due]

    monkeypatch.setattr(ProcessWorker, "_submit_scheduled_flow_runs", submit)
    monkeypatch.setattr(repaired, "find_local_runs", lambda: set(left))
    due: Any = [SimpleNamespace(flow_run=flow_run) for flow_run in (again, new)]
    assert asyncio.run(ShepherdWorker("local", "w")._submit_scheduled_flow_runs(due)) == [new]
    left.clear()
    assert asyncio.run(ShepherdWorker("local", "w")._submit_scheduled_flow_runs(due)) == [again, new]


def test_heartbeat_monitor_ignores_server_outage() -> None:
    silence = HeartbeatMonitor()
    for now in (0.0, 30.0, 60.0, 90.0):
        assert silence.too_long({RUN: Heartbeat(THEN)}, now) == []
    back = 90.0 + GAP + 1.0  # no request succeeded in between
    assert silence.too_long({RUN: Heartbeat(THEN)}, back) == []
    for later in (30.0, 60.0, 90.0):
        assert silence.too_long({RUN: Heartbeat(THEN)}, back + later) == []
    assert silence.too_long({RUN: Heartbeat(THEN)}, back + 120.0) == [RUN]  # it never came back


def test_pause_grows_only_after_short_lives() -> None:
    assert [pause(0.1, before) for before in (0.0, 1.0, 2.0, 40.0, 60.0)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert pause(LONGEST, 60.0) == 1.0


def test_restart_revives_killed_program_until_ended(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    restart = subprocess.Popen(
        [sys.executable, "-m", "flows.workers.restart", "patient"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert restart.stdout is not None
        assert restart.stdout.readline() == "here\n"
        (first,) = psutil.Process(restart.pid).children()
        first.kill()
        assert f"patient has ended ({-signal.SIGKILL}) and restarts in 1 s" in restart.stdout.readline()
        assert restart.stdout.readline() == "here\n"
        (second,) = psutil.Process(restart.pid).children()
        assert second.pid != first.pid
        restart.kill()
        wait_for(lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE, "the end of both", 10)
    finally:
        restart.kill()
        restart.communicate()
