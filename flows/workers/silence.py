"""Detection of Prefect flow runs that crashed without a report, because their machine failed.

A running flow run sends heartbeats to the server. If they stop, this module considers the flow run as crashed. An
automation of Prefect could do this as well, but it also counts the time in which the server was down. After an outage,
it would set the state of all running flow runs to CRASHED. This module measures the time again from the end of an
outage.
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
    """Last sign of life of a flow run: a heartbeat, or a change of its state.

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


async def last_heartbeats(client: PrefectClient) -> dict[UUID, Heartbeat]:
    """Return the last sign of life of each flow run in state RUNNING, PENDING or CANCELLING.

    This is the last heartbeat. For flow runs in state PENDING or CANCELLING, the change to this state counts as well.
    Running flow runs that never sent a heartbeat are omitted.
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
    """Return the final state to set for a flow run (`silent`) whose heartbeats have stopped."""
    state = (await client.read_flow_run(silent)).state
    if state is not None and state.type == StateType.CANCELLING:
        return Cancelled(message="cancelled; its process had ended already")
    if state is not None and state.type == StateType.PENDING:
        return Crashed(message=f"not started within {LIMIT_TAKEN} s; `prefect flow-run retry` tries again")
    return Crashed(message=f"no heartbeat for {LIMIT} s; `prefect flow-run retry` continues the run")


async def in_states(client: PrefectClient, *types: StateType) -> list[FlowRun]:
    """Read from the server all flow runs that are in one of these states."""
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state))


async def _heartbeat(client: PrefectClient, run: FlowRun) -> datetime | None:
    """Return the time of a flow run's last heartbeat; None if it never sent one."""
    of_run = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return next((event.occurred for event in (await client.read_events(of_run, limit=1)).events), None)
