"""Flow runs that a worker left behind when it was killed, and how they go on by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

import psutil
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Scheduled

from flows.workers.pools import DRIVERS
from flows.workers.silence import in_states

CRASHES, WITHIN = 3, timedelta(hours=1)  # so many of a sweep, in this time: after one more somebody is to look at it


def find_local_runs() -> set[UUID]:
    """The flow runs that processes of this machine lead, or belong to."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):  # it has ended; it is somebody else's
            found.add(UUID(process.environ().get("PREFECT__FLOW_RUN_ID", "")))
    return found - {UUID(own) for own in [os.environ.get("PREFECT__FLOW_RUN_ID")] if own}


async def reschedule(client: PrefectClient, note: str, has: Callable[[UUID], bool]) -> None:
    """Give back the flow runs that a worker had taken when it was killed, and that no process has begun.

    Args:
        client: of the server.
        note: message of the states in which this worker has taken what it takes.
        has: whether it has one itself just now.
    """
    taken = [run for run in await in_states(client, StateType.PENDING) if run.state and run.state.message == note]
    there = find_local_runs() if taken else set()
    for run in taken:
        if not has(run.id) and run.id not in there:
            again = Scheduled(message="its worker was killed before it began")
            await client.set_flow_run_state(run.id, again, force=True)


async def resume_sweeps(client: PrefectClient, since: datetime) -> None:
    """Schedule the sweeps again that have crashed since then, with their worker say: they lose and repeat nothing.

    One that crashes more than CRASHES times WITHIN an hour stays crashed.
    """
    crashed = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])))
    sweeps = WorkQueueFilter(name=WorkQueueFilterName(any_=[DRIVERS]))
    last_first = FlowRunSort.END_TIME_DESC
    for run in await client.read_flow_runs(flow_run_filter=crashed, work_queue_filter=sweeps, sort=last_first):
        if run.state is None or run.state.timestamp < since:
            continue
        states = await client.read_flow_run_states(run.id)
        count = sum(state.is_crashed() and run.state.timestamp - state.timestamp < WITHIN for state in states)
        if count <= CRASHES:
            again = Scheduled(message=f"goes on by itself after crash {count} of {CRASHES} in an hour")
            await client.set_flow_run_state(run.id, again, force=True)
