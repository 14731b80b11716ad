"""Worker of `make up`: Prefect's process worker, changed so that it does not lose flow runs.

    python -m flows.workers.worker --pool POOL --name NAME [--limit N] [--queue QUEUE] [--watch SINCE]

This worker avoids three faults of the worker in Prefect 3.8:

- If the process of a flow run is killed, Prefect reports this twice, with some seconds in between. If the user retries
  the flow run in this time, the second report ends the retry.
- A retry after a kill ends a worker that uses Prefect's concurrency limit.
- A server outage of more than 90 seconds ends the worker.

SIGTERM ends this process immediately, like SIGKILL. The processes of its flow runs detect the end of the worker, write
a checkpoint and end (flows.process.parents).

The command and the environment variables of a flow run come from Prefect's database. For security, the worker executes
only what the code of this project defines (flows.workers.trusted).

The worker reschedules flow runs that a killed worker of the same name had claimed but not started. One worker per
server (`--watch`) also sets flow runs without heartbeats to the state CRASHED, and resumes sweeps that crashed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flows.process.network import survive_outages
from flows.process.parents import WORKER
from flows.settings import configure_environment, home
from flows.workers.pools import DRIVERS

configure_environment()  # before the imports below, because Prefect reads its settings when it is imported

from prefect._internal.observers import FlowRunCancellingObserver  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.client.schemas.responses import WorkerFlowRunResponse  # noqa: E402
from prefect.exceptions import Abort, ObjectNotFound  # noqa: E402
from prefect.states import Failed, Pending  # noqa: E402
from prefect.utilities.engine import propose_state  # noqa: E402
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult  # noqa: E402

from flows.workers.left_behind import find_local_runs, reschedule, resume_sweeps  # noqa: E402
from flows.workers.silence import HeartbeatMonitor, ending, last_heartbeats  # noqa: E402
from flows.workers.trusted import refusal  # noqa: E402

_look = FlowRunCancellingObserver._check_for_cancelled_flow_runs


async def _look_on(self: FlowRunCancellingObserver) -> None:
    """Check if flow runs were cancelled, and ignore failures during a server outage.

    This replaces Prefect's check, which stops permanently after three failures.
    """
    with survive_outages():
        await _look(self)


FlowRunCancellingObserver._check_for_cancelled_flow_runs = _look_on


class ShepherdWorker(ProcessWorker):
    """Prefect worker for a work pool of type `process`: executes each flow run in a child process.

    Args:
        pool: name of the work pool.
        name: name of the worker.
        limit: maximum number of flow runs at the same time; None = no limit. Flow runs in the queue `drivers` (sweeps)
            do not count, because they only wait for the flow runs of their trials.
        queue: the only queue of the pool that the worker serves; None = all queues.
        watch: time in seconds since 1970. If it is not None, the worker also watches the flow runs of all workers: it
            sets flow runs without heartbeats to the state CRASHED, and resumes sweeps that crashed after this time.
    """

    def __init__(
        self, pool: str, name: str, limit: int | None = None, queue: str | None = None, watch: float | None = None
    ) -> None:
        super().__init__(work_pool_name=pool, name=name, work_queues=[queue] if queue else None)
        self._places = limit
        self._since = None if watch is None else datetime.fromtimestamp(watch, UTC)
        self._note = f"taken by worker {name} of pool {pool} on {socket.gethostname()}"
        self._begun: set[UUID] = set()
        self._running: set[UUID] = set()  # those of them that count towards the limit
        self._silence = HeartbeatMonitor()

    @classmethod
    def __dispatch_key__(cls) -> str:
        return "shepherd"  # with "process", Prefect would find its own worker class

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: Any = None
    ) -> ProcessWorkerResult:
        """Execute a flow run until its process ends.

        If the code of this project does not define the flow run, it fails without being executed.

        Args:
            flow_run: the flow run.
            configuration: command and environment of the process.
            task_status: Prefect's object, to report that the process has started.

        Returns:
            Result with the exit code of the process. The code is 0 after a failure that the server already knows,
            because Prefect would otherwise report the failure a second time.
        """
        if reason := self._refusal(flow_run, configuration):
            self.get_flow_run_logger(flow_run).error(reason)
            await self.client.set_flow_run_state(flow_run.id, Failed(message=reason), force=True)
            if task_status is not None:
                task_status.started()
            return ProcessWorkerResult(identifier="", status_code=0)
        began = datetime.now(UTC)
        self._begun.add(flow_run.id)
        if flow_run.work_queue_name != DRIVERS:
            self._running.add(flow_run.id)
        try:
            result = await super().run(flow_run, configuration, task_status)
        finally:
            self._begun.discard(flow_run.id)
            self._running.discard(flow_run.id)
        if result.status_code:
            states = await self.client.read_flow_run_states(flow_run.id)
            if any(state.is_final() and state.timestamp >= began for state in states):
                return ProcessWorkerResult(identifier=result.identifier, status_code=0)
        return result

    def _refusal(self, flow_run: FlowRun, configuration: ProcessJobConfiguration) -> str:
        """Return the reason why a flow run must not be executed (`flows.workers.trusted`); "" if it may be executed."""
        about = configuration._related_objects  # Prefect has loaded them for the configuration
        deployment, flow = about.get("deployment"), about.get("flow")
        usual = ProcessJobConfiguration()
        usual.prepare_for_flow_run(flow_run, deployment, flow, self.work_pool, self.name, self.backend_id)
        job, without = (
            {"command": one.command, "env": one.env, "working_dir": one.working_dir} for one in (configuration, usual)
        )
        return refusal(deployment, job, without)

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Start the flow runs that are due. During a server outage, no flow run is started; running ones continue."""
        with survive_outages():
            return await super().get_and_submit_flow_runs()
        return []

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        """Start flow runs as long as the limit of concurrent flow runs permits.

        A flow run that is retried is not started while processes of its earlier attempt are running on this machine.
        """
        has = self._begun | self._submitting_flow_run_ids
        has |= find_local_runs() if any(response.flow_run.run_count for response in flow_run_response) else set()
        flow_run_response = [one for one in flow_run_response if one.flow_run.id not in has]
        if self._places is not None:
            taken = self._running | self._submitting_flow_run_ids
            drivers = [response for response in flow_run_response if response.flow_run.work_queue_name == DRIVERS]
            due = [one for one in flow_run_response if one not in drivers]
            flow_run_response = [*drivers, *due[: max(0, self._places - len(taken))]]
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def _propose_pending_state(self, flow_run: FlowRun) -> bool:
        """Claim a flow run for this worker, by setting its state to PENDING; return True if that succeeds.

        The message of the state contains the name of the worker. If the worker is killed, a new worker of the same name
        finds the flow run by this message (`flows.workers.left_behind.reschedule`).
        """
        try:
            state = await propose_state(self.client, Pending(message=self._note), flow_run_id=flow_run.id)
        except Abort:  # another worker has claimed it, or it was cancelled
            return False
        except Exception:
            self.get_flow_run_logger(flow_run).exception("could not claim this flow run")
            return False
        return state.is_pending()

    async def _propose_submitting_state(self, flow_run: FlowRun) -> None:
        """Do nothing, because the state that `_propose_pending_state` has set must stay.

        Prefect's method would replace that state, including its message.
        """

    def _has(self, flow_run: UUID) -> bool:
        return flow_run in self._begun or flow_run in self._submitting_flow_run_ids

    async def sync_with_backend(self) -> None:
        """Send a heartbeat of this worker to the server, and recover flow runs whose worker or process was killed."""
        with survive_outages():
            await super().sync_with_backend()
            await reschedule(self.client, self._note, self._has)
            if self._since is None:
                return
            for silent in self._silence.too_long(await last_heartbeats(self.client), time.monotonic()):
                with suppress(ObjectNotFound):  # the flow run was deleted
                    await self.client.set_flow_run_state(silent, await ending(self.client, silent))
            await resume_sweeps(self.client, self._since)


def main(arguments: list[str]) -> None:
    """Serve a work pool until a signal arrives. This is the entry point of the program."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", required=True, help="a work pool of type process")
    parser.add_argument("--name", required=True, help="name of this worker in Prefect's pages")
    parser.add_argument("--limit", type=int, help="maximum number of concurrent flow runs, not counting sweeps")
    parser.add_argument("--queue", help="the only queue to serve; default: all queues of the pool")
    watch = "also set flow runs without heartbeats to the state CRASHED; resume sweeps that crashed after this time"
    parser.add_argument("--watch", type=float, metavar="SINCE", help=f"{watch} (seconds since 1970)")
    os.environ[WORKER] = "1"
    os.environ["SHEPHERD_HOME"] = str(home())  # flow runs store their state here, even if their code is a clone
    asyncio.run(ShepherdWorker(**vars(parser.parse_args(arguments))).start())


if __name__ == "__main__":
    main(sys.argv[1:])
