"""Prefect's process worker, changed so that it does not lose flow runs (`flows.prefect_repairs` lists the faults)."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from flows.process.network import survive_outages
from flows.settings import configure_environment

configure_environment()  # before the imports below, because Prefect reads its settings when it is imported

from prefect._internal.observers import FlowRunCancellingObserver  # noqa: E402
from prefect.client.schemas.objects import FlowRun  # noqa: E402
from prefect.client.schemas.responses import WorkerFlowRunResponse  # noqa: E402
from prefect.exceptions import Abort, ObjectNotFound  # noqa: E402
from prefect.states import Pending  # noqa: E402
from prefect.utilities.engine import propose_state  # noqa: E402
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult  # noqa: E402

from flows.prefect_repairs.lost_runs import (  # noqa: E402
    HeartbeatMonitor,
    crashed_state,
    find_local_runs,
    last_heartbeats,
    reschedule,
)

prefects_check = FlowRunCancellingObserver._check_for_cancelled_flow_runs


async def _check_for_cancelled_flow_runs(self: FlowRunCancellingObserver) -> None:
    """Check if flow runs were cancelled, and ignore failures during a server outage.

    This replaces Prefect's check, which stops permanently after three failures.
    """
    with survive_outages():
        await prefects_check(self)


FlowRunCancellingObserver._check_for_cancelled_flow_runs = _check_for_cancelled_flow_runs


class RepairedWorker(ProcessWorker):
    """Prefect worker for a work pool of type `process`: executes each flow run in a child process.

    Args:
        pool: name of the work pool.
        name: name of the worker.
        limit: maximum number of flow runs at the same time; None = no limit.
        queue: the only queue of the pool that the worker serves; None = all queues.
        watched: work pools of this project. If there are any, the worker also watches the flow runs of all workers: it
            sets flow runs without heartbeats to the state CRASHED.
    """

    def __init__(
        self, pool: str, name: str, limit: int | None = None, queue: str | None = None, watched: Collection[str] = ()
    ) -> None:
        super().__init__(work_pool_name=pool, name=name, work_queues=[queue] if queue else None)
        self._places, self._watched = limit, watched
        self._note = f"taken by worker {name} of pool {pool} on {socket.gethostname()}"
        self._begun: set[UUID] = set()
        self._running: set[UUID] = set()  # those of them that count towards the limit
        self._silence = HeartbeatMonitor()

    @classmethod
    def __dispatch_key__(cls) -> str:
        return cls.__name__  # with "process", Prefect would find its own worker class

    def counts(self, flow_run: FlowRun) -> bool:
        """Return True if a flow run counts towards the limit of concurrent flow runs."""
        return True

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: Any = None
    ) -> ProcessWorkerResult:
        """Execute a flow run until its process ends.

        Args:
            flow_run: the flow run.
            configuration: command and environment of the process.
            task_status: Prefect's object, to report that the process has started.

        Returns:
            Result with the exit code of the process. The code is 0 after a failure that the server already knows,
            because Prefect would otherwise report the failure a second time.
        """
        began = datetime.now(UTC)
        self._begun.add(flow_run.id)
        if self.counts(flow_run):
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
            free = [response for response in flow_run_response if not self.counts(response.flow_run)]
            due = [one for one in flow_run_response if one not in free]
            flow_run_response = [*free, *due[: max(0, self._places - len(taken))]]
        return await super()._submit_scheduled_flow_runs(flow_run_response)

    async def _propose_pending_state(self, flow_run: FlowRun) -> bool:
        """Claim a flow run for this worker, by setting its state to PENDING; return True if that succeeds.

        The message of the state contains the name of the worker. If the worker is killed, a new worker of the same name
        finds the flow run by this message (`lost_runs.reschedule`).
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
            await self.recover()

    async def recover(self) -> None:
        """Reschedule the flow runs of a killed worker of this name; set silent flow runs of all workers to CRASHED."""
        await reschedule(self.client, self._note, self._has)
        if not self._watched:
            return
        for silent in self._silence.too_long(await last_heartbeats(self.client, self._watched), time.monotonic()):
            with suppress(ObjectNotFound):  # the flow run was deleted
                await self.client.set_flow_run_state(silent, await crashed_state(self.client, silent))
