"""Recovery of Prefect flow runs that were not started or not finished because their worker was killed."""

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

CRASHES, WITHIN = 3, timedelta(hours=1)  # a sweep that crashes more often within this time is not resumed


def find_local_runs() -> set[UUID]:
    """Return the ids of all flow runs that are executed by other processes of this machine."""
    local = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):  # the process has ended, or belongs to another user
            local.add(UUID(process.environ().get("PREFECT__FLOW_RUN_ID", "")))
    return local - {UUID(own) for own in [os.environ.get("PREFECT__FLOW_RUN_ID")] if own}


async def reschedule(client: PrefectClient, note: str, has: Callable[[UUID], bool]) -> None:
    """Reschedule flow runs that a killed worker had claimed, but not started.

    A worker claims a flow run by setting its state to PENDING with a message that contains the worker's name. This
    worker has the same name as the killed one and finds its flow runs by this message.

    Args:
        client: client of the Prefect server.
        note: the message that contains the worker's name.
        has: called with the id of a flow run; returns True if this process, not the killed one, has claimed it.
    """
    taken = [run for run in await in_states(client, StateType.PENDING) if run.state and run.state.message == note]
    there = find_local_runs() if taken else set()
    for run in taken:
        if not has(run.id) and run.id not in there:
            again = Scheduled(message="the worker was killed before the flow run started")
            await client.set_flow_run_state(run.id, again, force=True)


async def resume_sweeps(client: PrefectClient, since: datetime) -> None:
    """Reschedule the flow runs of sweeps that have crashed since a time, for example because their worker was killed.

    A resumed sweep neither loses nor repeats finished trials. If a sweep has crashed more than three times within an
    hour, it is not resumed.
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
            again = Scheduled(message=f"resumed automatically after crash {count} of {CRASHES} in an hour")
            await client.set_flow_run_state(run.id, again, force=True)
