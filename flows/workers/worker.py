"""The worker of `make up`: Prefect's process worker, mended where it loses flow runs.

    python -m flows.workers.worker --pool POOL --name NAME [--limit N]

Prefect 3.8 reports a flow run whose process was killed twice: at once, and some seconds later, when it has looked for
hooks of the flow. The second report undid a `prefect flow-run retry` that came in between. Its own limit ends the
worker over such a retry, and so does a server that is away for more than a minute and a half. SIGTERM ends this
process as SIGKILL does: its flow runs notice, and end well by themselves (flows.process.parents).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flows.settings import configure_environment
from flows.workers.silence import LIMIT, Silence, last_signs

configure_environment()

import httpx  # noqa: E402
from prefect.states import Crashed  # noqa: E402
from prefect.workers.process import ProcessWorker, ProcessWorkerResult  # noqa: E402

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.workers.process import ProcessJobConfiguration


class Worker(ProcessWorker):
    """Serves a pool of type `process`.

    Args:
        pool: its name.
        name: what Prefect's pages call this worker.
        limit: flow runs at once; None = as many as the pool's own limit lets through.
    """

    def __init__(self, pool: str, name: str, limit: int | None = None) -> None:
        super().__init__(work_pool_name=pool, name=name)
        self._places = limit
        self._running: set[UUID] = set()
        self._silence = Silence()

    @classmethod
    def __dispatch_key__(cls) -> str:
        return "shepherd"  # under "process" Prefect goes on to find its own

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: Any = None,
    ) -> ProcessWorkerResult:
        """Run a flow run to its end.

        Args:
            flow_run: which.
            configuration: its job's.
            task_status: anyio's; told the pid.

        Returns:
            The exit status; 0 where this attempt's end has been reported already, so that it is not reported again.
        """
        began = datetime.now(UTC)
        self._running.add(flow_run.id)
        try:
            result = await super().run(flow_run, configuration, task_status)
        finally:
            self._running.discard(flow_run.id)
        if not result.status_code:
            return result
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
            waiting = [response for response in flow_run_response if response.flow_run.id not in taken]
            flow_run_response = waiting[: max(0, self._places - len(taken))]
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def sync_with_backend(self) -> None:
        """Tell the server that this worker lives and, from one without a limit, which flow runs do not."""
        with outages_survived():
            await super().sync_with_backend()
            if self._places is None:
                for silent in self._silence.too_long(await last_signs(self.client), time.monotonic()):
                    message = f"no sign of life for {LIMIT} s; `prefect flow-run retry` continues the run"
                    await self.client.set_flow_run_state(silent, Crashed(message=message))


@contextmanager
def outages_survived() -> Iterator[None]:
    """Leave the `with` where Prefect's server is away or fails: Prefect's loops try again, but not for long."""
    try:
        yield
    except httpx.TransportError:
        return
    except httpx.HTTPStatusError as error:
        if error.response.status_code < 500:
            raise


def main(arguments: list[str]) -> None:
    """Entry point: serve a pool until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", required=True, help="a work pool of type process")
    parser.add_argument("--name", required=True, help="what Prefect's pages call this worker")
    parser.add_argument("--limit", type=int, help="flow runs at once; without it the pool's own limit alone holds")
    options: Any = parser.parse_args(arguments)
    asyncio.run(Worker(options.pool, options.name, options.limit).start())


if __name__ == "__main__":
    main(sys.argv[1:])
