"""Faults of Prefect that `flows.prefect_repairs` repairs, reproduced with Prefect's own code.

A test that fails here means that the installed Prefect does not have the fault any more, or that its code has changed.
Read what has changed. If the fault is gone, delete the repair, its tests and its line in `flows/prefect_repairs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock
from uuid import UUID, uuid4

import anyio
import httpx
import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL,
    PREFECT_WORKER_QUERY_SECONDS,
)
from prefect.settings import temporary_settings as prefect_settings
from prefect.states import Cancelling, Crashed
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

import flows.prefect_repairs
from flows.prefect_repairs import TRIED, describe_untried_version
from flows.prefect_repairs import worker as repaired
from flows.prefect_repairs.worker import FlowRunCancellingObserver, RepairedWorker

AWAY = httpx.ConnectError("refused", request=httpx.Request("POST", "http://127.0.0.1:9/api"))


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of Prefect with a server that does not answer, and no pauses between two attempts."""
    quick = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_WORKER_QUERY_SECONDS: 0.001}
    with prefect_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", **quick}):
        yield


@pytest.mark.parametrize("worker_class", [ProcessWorker, RepairedWorker])
def test_prefects_worker_ends_in_server_outage(
    worker_class: type[ProcessWorker], no_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair is `survive_outages` in RepairedWorker."""
    failures = 0

    async def sync(self: Any) -> None:
        nonlocal failures
        failures += 1
        raise AWAY

    async def scene() -> bool:
        worker = worker_class("local", name="w")
        worker.heartbeat_interval_seconds = 0.001  # pyright: ignore[reportAttributeAccessIssue]
        serving = asyncio.ensure_future(worker.start(printer=lambda *_: None))
        while not serving.done() and failures < 30:  # Prefect ends its worker after 13
            await asyncio.sleep(0.01)
        ended = serving.done()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return ended

    monkeypatch.setattr(ProcessWorker, "sync_with_backend", sync)
    assert asyncio.run(scene()) == (worker_class is ProcessWorker)


@pytest.mark.parametrize("check", ["prefects_check", "_check_for_cancelled_flow_runs"])
def test_prefects_observer_stops_after_server_outage(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair replaces the check; without it, workers would continue cancelled flow runs (Prefect issue 18840)."""
    fails = httpx.HTTPStatusError("busy", request=AWAY.request, response=httpx.Response(503, request=AWAY.request))
    failures = iter([AWAY, fails] * 6)
    run = FlowRun(id=uuid4(), flow_id=uuid4(), state=Cancelling())

    async def read_flow_runs(**_: Any) -> list[FlowRun]:
        for failure in failures:
            raise failure
        return [run]

    async def scene() -> bool:
        observed: asyncio.Future[UUID] = asyncio.get_running_loop().create_future()

        def cancel(flow_run_id: UUID) -> None:
            if not observed.done():
                observed.set_result(flow_run_id)

        observer = FlowRunCancellingObserver(cancel, 0.001)
        observer._client = SimpleNamespace(read_flow_runs=read_flow_runs)  # pyright: ignore[reportAttributeAccessIssue]
        observer.add_in_flight_flow_run_id(run.id)
        observer._start_polling_task(SimpleNamespace(cancelled=bool, exception=lambda: AWAY))  # pyright: ignore[reportArgumentType]
        assert observer._polling_task is not None
        over, _ = await asyncio.wait({observed, observer._polling_task}, return_when=asyncio.FIRST_COMPLETED)
        observer._polling_task.cancel()
        return observed in over and observed.result() == run.id

    installed = FlowRunCancellingObserver._check_for_cancelled_flow_runs
    assert installed is repaired._check_for_cancelled_flow_runs
    monkeypatch.setattr(FlowRunCancellingObserver, "_check_for_cancelled_flow_runs", getattr(repaired, check))
    assert asyncio.run(scene()) == (check == "_check_for_cancelled_flow_runs")


def test_prefects_worker_with_limit_ends_at_early_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair counts slots itself (tests/flows/workers/test_worker.py; Prefect issues 10632 and 16806)."""
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4())
    response: Any = [SimpleNamespace(flow_run=flow_run)]

    async def scene() -> None:
        worker = ProcessWorker("gpu", name="w", limit=2)
        worker._limiter = anyio.CapacityLimiter(2)
        worker._runs_task_group = SimpleNamespace(start_soon=lambda *_: None)  # pyright: ignore[reportAttributeAccessIssue]
        assert await worker._submit_scheduled_flow_runs(response) == [flow_run]
        worker._submitting_flow_run_ids.discard(flow_run.id)  # Prefect's worker does this once the process runs
        await worker._submit_scheduled_flow_runs(response)

    monkeypatch.setattr(ProcessWorker, "get_flow_run_logger", lambda *_: logging.getLogger("test"))
    with pytest.raises(RuntimeError, match="already holding"):  # Prefect does not catch it
        asyncio.run(scene())


@pytest.mark.parametrize("worker_class", [ProcessWorker, RepairedWorker])
def test_prefects_worker_reports_killed_flow_run_twice(
    worker_class: type[ProcessWorker], no_server: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The repair is `RepairedWorker.run`; the second report would end a retry that was started in between."""
    reports: list[State[Any]] = []
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4())

    async def report(self: Any, _: FlowRun, message: str, **__: Any) -> State[Any]:
        reports.append(Crashed(message=message))
        return reports[-1]

    async def nothing(*_: Any, **__: Any) -> None: ...

    async def resolve(*_: Any, **__: Any) -> ProcessJobConfiguration:
        configuration = ProcessJobConfiguration(command="sh -c 'kill -9 $$'", working_dir=tmp_path)
        configuration._command_configured = True
        return configuration

    async def states(_: Any) -> list[State[Any]]:
        return list(reports)

    async def scene() -> None:
        worker = worker_class("local", name="w")
        worker._work_pool = SimpleNamespace(name="local")  # pyright: ignore[reportAttributeAccessIssue]
        worker._client = SimpleNamespace(read_flow_run_states=states)  # pyright: ignore[reportAttributeAccessIssue]
        await worker._submit_run_and_capture_errors(flow_run)

    monkeypatch.setattr("prefect.runner._state_proposer.StateProposer.propose_crashed", report)
    monkeypatch.setattr(ProcessWorker, "_propose_crashed_state", report)
    monkeypatch.setattr(ProcessJobConfiguration, "resolve_for_flow_run", resolve)
    for method in ("_give_worker_labels_to_flow_run", "_propose_submitting_state"):
        monkeypatch.setattr(ProcessWorker, method, nothing)
    for method in ("_emit_flow_run_submitted_event", "_emit_flow_run_executed_event"):
        monkeypatch.setattr(ProcessWorker, method, lambda *_: None)
    monkeypatch.setattr(ProcessWorker, "get_flow_run_logger", lambda *_: logging.getLogger("test"))
    monkeypatch.setattr("prefect.runner._hook_runner.HookRunner.run_crashed_hooks", nothing)
    asyncio.run(scene())
    assert len(reports) == (2 if worker_class is ProcessWorker else 1)
    assert "9" in str(reports[0].message)


def test_prefects_server_ignores_lost_flow_runs() -> None:
    """The repair is `lost_runs` (Prefect issues 16746, 17415 and 21932): none of these services looks for them.

    If Prefect adds a service, find out if it ends or reschedules pending and running flow runs of lost workers.
    """
    import prefect.server.api.background_workers  # noqa: F401 - imports modules of services
    from prefect.server.services.base import Service
    from prefect.server.services.perpetual_services import get_perpetual_services

    classes = Service.all_services()  # imports the other modules
    assert {service.__name__ for service in classes} == {
        "Actions",
        "Distributor",
        "EventLogger",
        "EventPersister",
        "LogDistributor",
        "ReactiveTriggers",
        "TaskRunRecorder",
    }
    assert {service.function.__name__ for service in get_perpetual_services()} == {
        "ensure_cancelling_timeout_checks",
        "evaluate_proactive_triggers_periodic",
        "monitor_cancelled_flow_runs",
        "monitor_expired_leases",
        "monitor_expired_pauses",
        "monitor_late_runs",
        "monitor_subflow_runs",
        "monitor_worker_health",
        "reconcile_cleanup_delivery",
        "schedule_deployments",
        "schedule_event_vacuum_tasks",
        "schedule_orphan_vacuum_tasks",
        "schedule_recent_deployments",
        "schedule_vacuum_tasks",
        "send_telemetry_heartbeat",
    }


def test_prefects_concurrency_hides_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair is `leases`: it stores the lease in a file, so that a process can release that of a killed one."""
    from prefect.concurrency import _sync
    from prefect.concurrency.sync import concurrency

    limit = {"id": uuid4(), "name": "run", "limit": 1}
    answer = ConcurrencyLimitWithLeaseResponse.model_validate({"lease_id": uuid4(), "limits": [limit]})
    monkeypatch.setattr(_sync, "acquire_concurrency_slots_with_lease", lambda *_, **__: answer)
    monkeypatch.setattr(_sync, "maintain_concurrency_lease", lambda *_, **__: nullcontext())
    for name in ("release_concurrency_slots_with_lease", "_discard_cleanup_lease"):
        monkeypatch.setattr(_sync, name, lambda _: None)
    for name in ("emit_concurrency_acquisition_events", "emit_concurrency_release_events"):
        monkeypatch.setattr(_sync, name, lambda *_: {})
    with concurrency("run", strict=True) as lease:
        assert lease is None


def test_prefects_lease_is_not_acquired_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair is `leases`: Prefect stops renewing a lease that was lost in an outage (Prefect issue 19068)."""
    from prefect.concurrency import _leases

    gone = httpx.HTTPStatusError("gone", request=AWAY.request, response=httpx.Response(410, request=AWAY.request))
    client = MagicMock()
    client.__enter__.return_value.renew_concurrency_lease.side_effect = gone
    monkeypatch.setattr(_leases, "get_client", lambda **_: client)
    never: Any = SimpleNamespace(is_set=lambda: False, wait=lambda _: False)
    with pytest.raises(httpx.HTTPStatusError):
        _leases._lease_renewal_loop(uuid4(), 60.0, never)
    assert {call[0] for call in client.__enter__.return_value.method_calls} == {"renew_concurrency_lease"}


def test_prefects_recorder_truncates_flush_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair is an integer interval in `flows.settings`; an interval of 0 uses a complete CPU core."""
    from prefect.server.services import task_run_recorder

    given: list[float] = []

    def consumer(flush_every: float, **_: Any) -> Any:
        given.append(flush_every)
        raise NotImplementedError  # ends the recorder

    monkeypatch.setattr(task_run_recorder, "create_consumer", lambda *_, **__: None)
    monkeypatch.setattr(task_run_recorder, "consumer", consumer)
    half = prefect_settings({PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL: 0.5})
    with half, pytest.raises(NotImplementedError):
        asyncio.run(task_run_recorder.TaskRunRecorder().start())
    assert given == [0]


def test_describe_untried_version_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_untried_version() == ""  # requirements.lock installs a version that was tried
    monkeypatch.setattr(flows.prefect_repairs, "version", lambda _: "3.9.1")
    warning = describe_untried_version()
    assert warning.startswith("Prefect 3.9.1 is installed") and TRIED[-1] in warning
