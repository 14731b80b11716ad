"""Flow runs of killed workers are rescheduled or resumed, but not if they still run or crash repeatedly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelling, Crashed, Pending, Running

from flows.prefect_repairs.lost_runs import (
    LIMIT,
    LIMIT_TAKEN,
    Heartbeat,
    crashed_state,
    find_local_runs,
    last_heartbeats,
    reschedule,
)
from flows.workers.pools import POOLS
from flows.workers.worker import CRASHES, resume_sweeps

NOTE = "taken by worker w of pool local on here"
THEN = datetime(2026, 1, 1, tzinfo=UTC)


class Api:
    """Prefect's API in memory: the states of each flow run, the current one last, and the time of its heartbeat."""

    def __init__(self, *histories: Sequence[State], heartbeats: dict[int, datetime] | None = None) -> None:
        self.states = {uuid4(): list(states) for states in histories}
        self.pools = dict.fromkeys(self.states, "local")
        self.heartbeats = {list(self.states)[number]: when for number, when in (heartbeats or {}).items()}

    async def read_flow_run(self, flow_run: UUID) -> FlowRun:
        return FlowRun(
            id=flow_run, flow_id=uuid4(), state=self.states[flow_run][-1], work_pool_name=self.pools.get(flow_run)
        )

    async def read_flow_runs(self, flow_run_filter: Any, **_: Any) -> list[FlowRun]:
        wanted = flow_run_filter.state.type.any_
        return [await self.read_flow_run(run) for run, states in self.states.items() if states[-1].type in wanted]

    async def read_flow_run_states(self, flow_run: UUID) -> list[State]:
        return self.states[flow_run]

    async def set_flow_run_state(self, flow_run: UUID, state: State, force: bool = False) -> None:
        self.states[flow_run].append(state)

    async def read_events(self, of_run: Any, limit: int) -> Any:
        run = UUID(of_run.resource.id[0].removeprefix("prefect.flow-run."))
        event = type("Event", (), {"occurred": self.heartbeats.get(run)})
        return type("Page", (), {"events": [event] if run in self.heartbeats else []})

    @property
    def now(self) -> list[str]:
        return [states[-1].type.value for states in self.states.values()]


@pytest.fixture
def process() -> Iterator[UUID]:
    """The id of a flow run that a process of this machine belongs to."""
    flow_run = uuid4()
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | {"PREFECT__FLOW_RUN_ID": str(flow_run)}, **pipes) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield flow_run
        running.kill()


def test_reschedule_returns_flow_runs_of_killed_worker(process: UUID) -> None:
    mine, foreign = Pending(message=NOTE), Pending(message=NOTE.replace("worker w", "worker v"))
    api = Api([mine], [foreign], [mine], [mine], [Running(message=NOTE)])
    returned, _, claimed, running, _ = api.states
    api.states = {process if run == running else run: states for run, states in api.states.items()}
    asyncio.run(reschedule(api, NOTE, {claimed}.__contains__))  # pyright: ignore[reportArgumentType]
    assert api.now == ["SCHEDULED", "PENDING", "PENDING", "PENDING", "RUNNING"]
    assert [state.type.value for state in api.states[returned]] == ["PENDING", "SCHEDULED"]


def test_find_local_runs_reads_process_environment(process: UUID) -> None:
    assert process in find_local_runs()
    assert uuid4() not in find_local_runs()


def crashes(*minutes: float) -> list[State]:
    return [Crashed(timestamp=THEN + timedelta(minutes=minute)) for minute in minutes]


def test_resume_sweeps_stops_after_repeated_crashes() -> None:
    within, often = crashes(*range(0, 10 * CRASHES, 10)), crashes(*range(0, 10 * CRASHES + 10, 10))
    seldom = crashes(*range(0, 70 * (CRASHES + 1), 70))
    before = crashes(-1)
    api = Api(within, often, seldom, before, [Running()])
    asyncio.run(resume_sweeps(api, THEN))  # pyright: ignore[reportArgumentType]
    assert api.now == ["SCHEDULED", "CRASHED", "SCHEDULED", "CRASHED", "RUNNING"]
    message = next(iter(api.states.values()))[-1].message
    assert message == f"resumed automatically after crash {CRASHES} of {CRASHES} in an hour"


def test_last_heartbeats_omits_cancelling_flow_runs() -> None:
    late = THEN + timedelta(seconds=50)
    taken = Pending(timestamp=THEN)
    api = Api([Running()], [Running()], [taken], [taken], [Cancelling(timestamp=THEN)], heartbeats={0: late, 4: late})
    runs, _, pending, pulled, _ = api.states
    api.pools[pulled] = "kubernetes"  # may pull an image first
    signs = asyncio.run(last_heartbeats(api, POOLS))  # pyright: ignore[reportArgumentType]
    # Prefect's server itself ends flow runs that stay in the state CANCELLING.
    assert signs == {runs: Heartbeat(late, LIMIT), pending: Heartbeat(THEN, LIMIT_TAKEN)}
    ends = [asyncio.run(crashed_state(api, run)) for run in (runs, pending)]  # pyright: ignore[reportArgumentType]
    messages = [str(end.message).partition(";")[0] for end in ends]
    assert messages == ["no heartbeat for 115 s", "not started within 300 s"]
