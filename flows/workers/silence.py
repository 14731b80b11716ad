"""Find the flow runs that crashed without anybody to say so: those of a machine that vanished as a whole.

Prefect's automations can wait for a flow run's next heartbeat, but count the time in which the server was away itself:
every run alive would be called crashed after an outage. Here the wait begins anew then.
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

LIMIT = 115  # seconds without a heartbeat until a flow run counts as crashed; it gives one every 30 (flows.workers.up)
LIMIT_TAKEN = 300  # seconds for one that a worker has taken to begin: it may have to clone the code, and gives no sign
GAP = 75.0  # seconds between two looks: after more, the server (or who looks) was away in between


class Heartbeat(NamedTuple):
    """The last sign of life of a flow run.

    Attributes:
        when: it was given.
        limit: seconds after which no further one means that nobody is left to give it.
    """

    when: datetime
    limit: float = LIMIT


class HeartbeatMonitor:
    """Time for which each flow run has given no sign of life, of that in which somebody listened."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._heard: dict[UUID, tuple[datetime, float]] = {}

    def too_long(self, signs: Mapping[UUID, Heartbeat], now: float) -> list[UUID]:
        """The flow runs that are silent for longer than their limit, by their last signs of life as seen just now."""
        known = self._heard if now - self._looked <= GAP else {}
        self._looked = now
        self._heard = {
            run: known[run] if run in known and known[run][0] == sign.when else (sign.when, now)
            for run, sign in signs.items()
        }
        return [run for run, (_, since) in self._heard.items() if now - since > signs[run].limit]


async def last_heartbeats(client: PrefectClient) -> dict[UUID, Heartbeat]:
    """The last sign of each flow run that runs, is about to, or is being cancelled.

    One that runs and never gave a heartbeat is left out; the others have given a sign when they came to their state.
    """
    signs = {}
    for run in await in_states(client, StateType.RUNNING, StateType.PENDING, StateType.CANCELLING):
        assert run.state is not None
        if run.state.type == StateType.PENDING:
            if run.work_pool_name in POOLS:  # in a pool of somebody's own an image may have to be pulled
                signs[run.id] = Heartbeat(run.state.timestamp, LIMIT_TAKEN)
            continue
        given = await _heartbeat(client, run)
        if run.state.type == StateType.CANCELLING:
            signs[run.id] = Heartbeat(max(filter(None, (given, run.state.timestamp))))
        elif given:
            signs[run.id] = Heartbeat(given)
    return signs


async def ending(client: PrefectClient, silent: UUID) -> State:
    """The state that a flow run is to have which nobody leads any more."""
    state = (await client.read_flow_run(silent)).state
    if state is not None and state.type == StateType.CANCELLING:
        return Cancelled(message="cancelled; its process was gone already")
    if state is not None and state.type == StateType.PENDING:
        return Crashed(message=f"not begun within {LIMIT_TAKEN} s; `prefect flow-run retry` tries again")
    return Crashed(message=f"no sign of life for {LIMIT} s; `prefect flow-run retry` continues the run")


async def in_states(client: PrefectClient, *types: StateType) -> list[FlowRun]:
    """The flow runs whose state is of one of these types."""
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types)))
    return await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=state))


async def _heartbeat(client: PrefectClient, run: FlowRun) -> datetime | None:
    """Moment of a flow run's last heartbeat; None where it never gave one."""
    of_run = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
    )
    return next((event.occurred for event in (await client.read_events(of_run, limit=1)).events), None)
