"""Recovery of Prefect flow runs whose worker, process or machine was lost.

Flow runs that a killed worker had claimed, but not started, stay in the state PENDING. A worker of the same name
reschedules them. Flow runs whose machine failed stay in the state RUNNING, but send no more heartbeats. An automation
of Prefect could find them, but it also counts the time in which the server was down: after an outage, it would set all
running flow runs to CRASHED. This module measures the time again from the end of an outage. Prefect's server ends flow
runs that stay in the state CANCELLING.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import psutil
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.states import Crashed, Scheduled

LIMIT = 115  # seconds without a heartbeat until a flow run counts as crashed; heartbeats are 30 s apart
LIMIT_TAKEN = 300  # seconds for a claimed flow run to start: it may have to clone the code, and sends no heartbeats yet
GAP = 75.0  # seconds between two checks; after a longer gap, the server or the checking worker was down in between


class Heartbeat(NamedTuple):
    """Last sign of life of a flow run: a heartbeat, or the change to the state PENDING.

    Attributes:
        when: time of the sign.
        limit: number of seconds without another sign after which the flow run is considered as crashed.
    """

    when: datetime
    limit: float = LIMIT


class HeartbeatMonitor:
    """Monitor that measures the time since the last heartbeat of each flow run. Server outages are not counted."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._heard: dict[UUID, tuple[datetime, float]] = {}

    def too_long(self, signs: Mapping[UUID, Heartbeat], now: float) -> list[UUID]:
        """Return the flow runs whose last heartbeat is older than their limit.

        Call this regularly, at least every 75 s. If more time has passed since the last call, the server is assumed to
        have been down. The last heartbeat of each flow run is then treated as if it had arrived at the time `now`.

        Args:
            signs: last heartbeat of each flow run, as just read from the server.
            now: current time, in seconds (`time.monotonic`).

        Returns:
            Ids of the flow runs.
        """
        known = self._heard if now - self._looked <= GAP else {}
        self._looked = now
        self._heard = {
            run: known[run] if run in known and known[run][0] == sign.when else (sign.when, now)
            for run, sign in signs.items()
        }
        return [run for run, (_, since) in self._heard.items() if now - since > signs[run].limit]


async def last_heartbeats(client: PrefectClient, pools: Collection[str]) -> dict[UUID, Heartbeat]:
    """Return the last sign of life of each flow run in state RUNNING or PENDING.

    Running flow runs that never sent a heartbeat are omitted. So are pending flow runs of work pools that are not in
    `pools`, because a worker of another pool may have to pull an image first.
    """
    signs = {}
    for run in await _in_states(client, StateType.RUNNING, StateType.PENDING):
        assert run.state is not None
        if run.state.type == StateType.RUNNING:
            if given := await _heartbeat(client, run):
                signs[run.id] = Heartbeat(given)
        elif run.work_pool_name in pools:
            signs[run.id] = Heartbeat(run.state.timestamp, LIMIT_TAKEN)
    return signs


async def crashed_state(client: PrefectClient, silent: UUID) -> State:
    """Return the state to set for a flow run whose heartbeats have stopped."""
    state = (await client.read_flow_run(silent)).state
    if state is not None and state.type == StateType.PENDING:
        return Crashed(message=f"not started within {LIMIT_TAKEN} s; `prefect flow-run retry` tries again")
    return Crashed(message=f"no heartbeat for {LIMIT} s; `prefect flow-run retry` continues the run")


async def reschedule(client: PrefectClient, note: str, has: Callable[[UUID], bool]) -> None:
    """Reschedule flow runs that a killed worker had claimed, but not started.

    A worker claims a flow run by setting its state to PENDING with a message that contains the worker's name. This
    worker has the same name as the killed one and finds its flow runs by this message.

    Args:
        client: client of the Prefect server.
        note: the message that contains the worker's name.
        has: called with the id of a flow run; returns True if this process, not the killed one, has claimed it.
    """
    taken = [run for run in await _in_states(client, StateType.PENDING) if run.state and run.state.message == note]
    there = find_local_runs() if taken else set()
    for run in taken:
        if not has(run.id) and run.id not in there:
            again = Scheduled(message="the worker was killed before the flow run started")
            await client.set_flow_run_state(run.id, again, force=True)


def find_local_runs() -> set[UUID]:
    """Return the ids of all flow runs that are executed by other processes of this machine."""
    local = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):  # the process has ended, or belongs to another user
            local.add(UUID(process.environ().get("PREFECT__FLOW_RUN_ID", "")))
    return local - {UUID(own) for own in [os.environ.get("PREFECT__FLOW_RUN_ID")] if own}


async def _in_states(client: PrefectClient, *types: StateType) -> list[FlowRun]:
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state))


async def _heartbeat(client: PrefectClient, run: FlowRun) -> datetime | None:
    """Return the time of a flow run's last heartbeat; None if it never sent one."""
    of_run = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return next((event.occurred for event in (await client.read_events(of_run, limit=1)).events), None)
