"""Detection of flow runs that crashed without a report, because their whole machine failed.

Prefect's automations can wait for the next heartbeat of a flow run, but the waiting time includes outages of the
server. After an outage, they would mark every running flow run as crashed. This module therefore measures the waiting
time again from the end of an outage.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.states import Cancelled, Crashed

from flows.workers.pools import POOLS

LIMIT = (
    115  # seconds without a heartbeat until a flow run counts as crashed; heartbeats are 30 s apart (flows.workers.up)
)
LIMIT_TAKEN = 300  # seconds for a claimed flow run to start: it may have to clone the code, and sends no heartbeats yet
GAP = 75.0  # seconds between two checks; after a longer gap, the server or the checking worker was down in between


class Heartbeat(NamedTuple):
    """Last heartbeat of a flow run, or its last change of state.

    Attributes:
        when: time of the heartbeat.
        limit: the flow run counts as crashed if this number of seconds passes without another heartbeat.
    """

    when: datetime
    limit: float = LIMIT


class HeartbeatMonitor:
    """Stopwatch for the time since the last heartbeat of each flow run. Server outages do not count."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._heard: dict[UUID, tuple[datetime, float]] = {}

    def too_long(self, signs: Mapping[UUID, Heartbeat], now: float) -> list[UUID]:
        """Return the flow runs without a heartbeat for longer than their limit.

        Args:
            signs: the last heartbeat of each flow run, just read from the server.
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


async def last_heartbeats(client: PrefectClient) -> dict[UUID, Heartbeat]:
    """Return the last heartbeat of each flow run that is running, pending or being cancelled.

    Running flow runs that never sent a heartbeat are omitted. For pending and cancelling ones, the change to that state
    counts as a heartbeat.
    """
    signs = {}
    for run in await in_states(client, StateType.RUNNING, StateType.PENDING, StateType.CANCELLING):
        assert run.state is not None
        if run.state.type == StateType.PENDING:
            if run.work_pool_name in POOLS:  # a worker of a user's own pool may have to pull an image first
                signs[run.id] = Heartbeat(run.state.timestamp, LIMIT_TAKEN)
            continue
        given = await _heartbeat(client, run)
        if run.state.type == StateType.CANCELLING:
            signs[run.id] = Heartbeat(max(filter(None, (given, run.state.timestamp))))
        elif given:
            signs[run.id] = Heartbeat(given)
    return signs


async def ending(client: PrefectClient, silent: UUID) -> State:
    """Return the final state for a flow run whose process no longer exists."""
    state = (await client.read_flow_run(silent)).state
    if state is not None and state.type == StateType.CANCELLING:
        return Cancelled(message="cancelled; its process had ended already")
    if state is not None and state.type == StateType.PENDING:
        return Crashed(message=f"not started within {LIMIT_TAKEN} s; `prefect flow-run retry` tries again")
    return Crashed(message=f"no heartbeat for {LIMIT} s; `prefect flow-run retry` continues the run")


async def in_states(client: PrefectClient, *types: StateType) -> list[FlowRun]:
    """Return the flow runs with a state of one of these types."""
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state))


async def _heartbeat(client: PrefectClient, run: FlowRun) -> datetime | None:
    """Return the time of a flow run's last heartbeat; None if it never sent one."""
    of_run = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return next((event.occurred for event in (await client.read_events(of_run, limit=1)).events), None)
