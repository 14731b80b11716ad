"""The worker of `make up`: Prefect's process worker, mended where it loses flow runs.

    python -m flows.workers.worker --pool POOL --name NAME [--limit N] [--queue QUEUE] [--watch]

Prefect 3.8 reports a flow run whose process was killed twice: at once, and some seconds later, when it has looked for
hooks of the flow. The second report undid a `prefect flow-run retry` that came in between. Its own limit ends the
worker over such a retry, and so does a server that is away for more than a minute and a half. SIGTERM ends this
process as SIGKILL does: its flow runs notice, and end well by themselves (flows.process.parents).

It also tells which flow runs have crashed without anybody to say so: those of a machine that vanished as a whole.
Prefect's automations can wait for a flow run's next heartbeat, but count the time in which the server was away itself:
every run alive would be called crashed after an outage. Here the wait begins anew then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flows.process.network import outages_survived
from flows.settings import configure_environment, home
from flows.workers.pools import DRIVERS

configure_environment()  # Prefect reads its settings when it is imported

from prefect.client.orchestration import PrefectClient  # noqa: E402
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType  # noqa: E402
from prefect.client.schemas.objects import FlowRun, StateType  # noqa: E402
from prefect.client.schemas.responses import WorkerFlowRunResponse  # noqa: E402
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter  # noqa: E402
from prefect.exceptions import ObjectNotFound  # noqa: E402
from prefect.states import Crashed  # noqa: E402
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult  # noqa: E402

LIMIT = 115  # seconds without a heartbeat until a flow run counts as crashed; it gives one every 30 (flows.workers.up)
GAP = 75.0  # seconds between two looks: after more, the server (or who looks) was away in between


class Silence:
    """How long each flow run has given no sign of life, of the time in which somebody listened."""

    def __init__(self) -> None:
        self._looked = float("-inf")
        self._heard: dict[UUID, tuple[datetime, float]] = {}

    def too_long(self, signs: Mapping[UUID, datetime], now: float) -> list[UUID]:
        """The flow runs that are silent for more than LIMIT seconds, by their last signs of life as seen just now."""
        known = self._heard if now - self._looked <= GAP else {}
        self._looked = now
        self._heard = {
            run: known[run] if run in known and known[run][0] == sign else (sign, now) for run, sign in signs.items()
        }
        return [run for run, (_, since) in self._heard.items() if now - since > LIMIT]


class Worker(ProcessWorker):
    """Serves a pool of type `process`.

    Args:
        pool: its name.
        name: of the worker.
        limit: flow runs at once, without those that only wait for others (queue `drivers`); None = all that are due.
        queue: the only one that it serves; None = all queues of the pool.
        watch: also tell which flow runs, of any worker, give no sign of life; one worker of a server does that.
    """

    def __init__(
        self, pool: str, name: str, limit: int | None = None, queue: str | None = None, watch: bool = False
    ) -> None:
        super().__init__(work_pool_name=pool, name=name, work_queues=[queue] if queue else None)
        self._places, self._watches = limit, watch
        self._running: set[UUID] = set()
        self._silence = Silence()

    @classmethod
    def __dispatch_key__(cls) -> str:
        return "shepherd"  # under "process" Prefect goes on to find its own

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: Any = None
    ) -> ProcessWorkerResult:
        """Run a flow run to its end; 0 where that has been reported already, so that it is not reported again."""
        began = datetime.now(UTC)
        if flow_run.work_queue_name != DRIVERS:
            self._running.add(flow_run.id)
        try:
            result = await super().run(flow_run, configuration, task_status)
        finally:
            self._running.discard(flow_run.id)
        if result.status_code:
            states = await self.client.read_flow_run_states(flow_run.id)
            if any(state.is_final() and state.timestamp >= began for state in states):
                return ProcessWorkerResult(identifier=result.identifier, status_code=0)
        return result

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Start what is due. While the server is away nothing is, and what runs here goes on."""
        with outages_survived():
            return await super().get_and_submit_flow_runs()
        return []

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        """Start no more than there are places for; a retry waits until its earlier attempt has left its place."""
        if self._places is not None:
            taken = self._running | self._submitting_flow_run_ids
            drivers = [response for response in flow_run_response if response.flow_run.work_queue_name == DRIVERS]
            due = [one for one in flow_run_response if one not in drivers and one.flow_run.id not in taken]
            flow_run_response = [*drivers, *due[: max(0, self._places - len(taken))]]
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def sync_with_backend(self) -> None:
        """Tell the server that this worker lives and, from the one that watches, which flow runs do not."""
        with outages_survived():
            await super().sync_with_backend()
            if self._watches:
                for silent in self._silence.too_long(await last_signs(self.client), time.monotonic()):
                    message = f"no sign of life for {LIMIT} s; `prefect flow-run retry` continues the run"
                    with suppress(ObjectNotFound):  # somebody has deleted it
                        await self.client.set_flow_run_state(silent, Crashed(message=message))


async def last_signs(client: PrefectClient) -> dict[UUID, datetime]:
    """When each of the flow runs that run has given its last heartbeat; without those that never gave one."""
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING]))
    sign = EventNameFilter(name=["prefect.flow-run.heartbeat"])
    signs = {}
    for run in await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=running)):
        of_run = EventFilter(event=sign, resource=EventResourceFilter(id=[f"prefect.flow-run.{run.id}"]))
        for event in (await client.read_events(of_run, limit=1)).events:
            signs[run.id] = event.occurred
    return signs


def main(arguments: list[str]) -> None:
    """Entry point: serve a pool until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", required=True, help="a work pool of type process")
    parser.add_argument("--name", required=True, help="what Prefect's pages call this worker")
    parser.add_argument("--limit", type=int, help="flow runs at once, but for sweeps; without it all that are due")
    parser.add_argument("--queue", help="the only queue that is served; without it all of the pool")
    parser.add_argument("--watch", action="store_true", help="also tell which flow runs give no sign of life")
    os.environ["SHEPHERD_HOME"] = str(home())  # flow runs keep their state here, wherever their code comes from
    asyncio.run(Worker(**vars(parser.parse_args(arguments))).start())


if __name__ == "__main__":
    main(sys.argv[1:])
