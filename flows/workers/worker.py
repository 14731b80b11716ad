"""The worker of `make up`: Prefect's process worker, which reports a crash once.

    python -m flows.workers.worker --pool POOL --name NAME [--limit N]

Prefect 3.8 reports a flow run whose process was killed twice: at once, and some seconds later, when it has looked for
hooks of the flow. The second report undid a `prefect flow-run retry` that came in between. SIGTERM ends this process
as SIGKILL does: its flow runs notice, and end well by themselves (flows.process.parents).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flows.settings import configure_environment

configure_environment()

from prefect.workers.process import ProcessWorker, ProcessWorkerResult  # noqa: E402

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.workers.process import ProcessJobConfiguration


class Worker(ProcessWorker):
    """Serves pools of type `process`."""

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
        result = await super().run(flow_run, configuration, task_status)
        if not result.status_code:
            return result
        states = await self.client.read_flow_run_states(flow_run.id)
        if any(state.is_final() and state.timestamp >= began for state in states):
            return ProcessWorkerResult(identifier=result.identifier, status_code=0)
        return result


def main(arguments: list[str]) -> None:
    """Entry point: serve a pool until a signal comes."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", required=True, help="a work pool of type process")
    parser.add_argument("--name", required=True, help="what Prefect's pages call this worker")
    parser.add_argument("--limit", type=int, help="flow runs at once; without it the pool's own limit alone holds")
    options: Any = parser.parse_args(arguments)
    asyncio.run(Worker(work_pool_name=options.pool, name=options.name, limit=options.limit).start())


if __name__ == "__main__":
    main(sys.argv[1:])
