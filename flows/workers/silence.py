"""Which flow runs have crashed without anybody to say so: those of a machine that vanished as a whole.

A flow run gives a sign of life every BEAT seconds. Prefect's automations can wait for it, but count the time in which
the server was away itself: every run alive would be called crashed after an outage. Here the wait begins anew then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

    from prefect.client.orchestration import PrefectClient

BEAT, LIMIT = 30, 115  # seconds between signs of life, and without one until a flow run counts as crashed
GAP = 75.0  # seconds between two looks: after more, the server (or who looks) was away in between
SIGN = "prefect.flow-run.heartbeat"


class Silence:
    """How long each flow run has given no sign of life, of the time in which somebody listened."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._heard: dict[UUID, tuple[datetime, float]] = {}

    def too_long(self, signs: Mapping[UUID, datetime], now: float) -> list[UUID]:
        """Take note of a look at the server.

        Args:
            signs: the flow runs that run, and when each gave its last sign of life.
            now: when the look was made, in seconds of a monotonic clock.

        Returns:
            Those that have been silent for more than LIMIT seconds.
        """
        known = self._heard if now - self._looked <= GAP else {}
        self._looked = now
        self._heard = {
            run: known[run] if run in known and known[run][0] == sign else (sign, now) for run, sign in signs.items()
        }
        return [run for run, (_, since) in self._heard.items() if now - since > LIMIT]


async def last_signs(client: PrefectClient) -> dict[UUID, datetime]:
    """The flow runs that run and have ever given a sign of life, and when each gave its last."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType
    from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    signs = {}
    for run in await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=running)):
        of_run = EventFilter(
            event=EventNameFilter(name=[SIGN]), resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"])
        )
        page = await client.read_events(of_run, limit=1)
        if page.events:
            signs[run.id] = page.events[0].occurred
    return signs
