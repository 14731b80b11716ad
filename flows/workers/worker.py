"""Worker of `make up`: executes the flow runs of a Prefect work pool.

    python -m flows.workers.worker --pool POOL --name NAME [--limit N] [--queue QUEUE] [--watch SINCE]

It is Prefect's process worker without some of its faults (flows.prefect_repairs), and with three rules of this project:

- For security, the worker executes only what the code of this project defines (`refusal`). Otherwise an attacker who
  can write to Prefect's database could execute any command as the worker's user, because the command and the
  environment variables of a flow run come from this database.
- Sweeps do not count towards the limit of concurrent flow runs.
- One worker per server (`--watch`) resumes sweeps that crashed.

SIGTERM ends this process immediately, like SIGKILL. The processes of its flow runs detect the end of the worker, write
a checkpoint and end (flows.process.parents).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from flows.prefect_repairs import describe_untried_version
from flows.process.parents import WORKER
from flows.settings import configure_environment, home
from flows.workers.pools import CLONE, DRIVERS, POOLS, REPOSITORY, SET_DIRECTORY, deployments
from rlcore.system.printable import print_safely

configure_environment()  # before the imports below, because Prefect reads its settings when it is imported

from prefect.client.orchestration import PrefectClient  # noqa: E402
from prefect.client.schemas.filters import (  # noqa: E402
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType  # noqa: E402
from prefect.client.schemas.sorting import FlowRunSort  # noqa: E402
from prefect.states import Failed, Scheduled  # noqa: E402
from prefect.workers.process import ProcessJobConfiguration, ProcessWorkerResult  # noqa: E402

from flows.prefect_repairs.worker import RepairedWorker  # noqa: E402

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

CRASHES, WITHIN = 3, timedelta(hours=1)  # a sweep that crashes more often within this time is not resumed


class ShepherdWorker(RepairedWorker):
    """Prefect worker that executes only flow runs of this project.

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
        super().__init__(pool, name, limit, queue, watched=() if watch is None else POOLS)
        self._since = None if watch is None else datetime.fromtimestamp(watch, UTC)

    def counts(self, flow_run: FlowRun) -> bool:
        """Return False for the flow runs of sweeps, which only wait for the flow runs of their trials."""
        return flow_run.work_queue_name != DRIVERS

    async def run(
        self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: Any = None
    ) -> ProcessWorkerResult:
        """Execute a flow run until its process ends; set it to FAILED if this project's code does not define it."""
        if reason := self._refusal(flow_run, configuration):
            self.get_flow_run_logger(flow_run).error(reason)
            await self.client.set_flow_run_state(flow_run.id, Failed(message=reason), force=True)
            if task_status is not None:
                task_status.started()
            return ProcessWorkerResult(identifier="", status_code=0)
        return await super().run(flow_run, configuration, task_status)

    def _refusal(self, flow_run: FlowRun, configuration: ProcessJobConfiguration) -> str:
        about = configuration._related_objects  # Prefect has loaded them for the configuration
        deployment, flow = about.get("deployment"), about.get("flow")
        usual = ProcessJobConfiguration()
        usual.prepare_for_flow_run(flow_run, deployment, flow, self.work_pool, self.name, self.backend_id)
        job, without = (
            {"command": one.command, "env": one.env, "working_dir": one.working_dir} for one in (configuration, usual)
        )
        return refusal(deployment, job, without)

    async def recover(self) -> None:
        """Recover flow runs whose worker or process was killed; resume sweeps if this worker watches all flow runs."""
        await super().recover()
        if self._since is not None:
            await resume_sweeps(self.client, self._since)


def refusal(deployment: DeploymentResponse | None, job: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """Check that a flow run executes only what the code of this project defines.

    In Prefect, job variables of a work pool, a deployment or a flow run can change the executed command, its
    environment and its working directory. They are refused.

    Args:
        deployment: Deployment of the flow run.
        job: Command, environment and working directory of the flow run, with job variables applied.
        usual: Command, environment and working directory of a flow run without job variables.

    Returns:
        A sentence with the reason why the flow run must not be started; "" if it may be.
    """
    if deployment is None:
        return "Refused: the flow run has no deployment; start it by `prefect deployment run`."
    name = f"{deployment.name} ({deployment.entrypoint})"
    if (deployment.entrypoint, deployment.name) not in {(one.entrypoint, one.name) for one in deployments()}:
        return (
            f"Refused: the code of this worker defines no deployment {name}; `make up` creates those that it defines."
        )
    if not _gets_our_code(deployment.pull_steps):
        return (
            f"Refused: the code of deployment {name} comes neither from {home()} nor from the repository in this "
            f"worker's {REPOSITORY}; start the worker with that variable, or deploy again with `make up`."
        )
    if changed := sorted(key for key in job if job[key] != usual[key]):
        return (
            f"Refused: job variables of the flow run, of deployment {name} or of the work pool change "
            f"{', '.join(changed)}; remove them, and set the variables that a run needs in the worker's environment."
        )
    return ""


def _gets_our_code(steps: list[dict[str, Any]] | None) -> bool:
    """Return True if a deployment's pull steps (they copy the code to a worker) provide only code of this project.

    They may select the worker's checkout, or clone the repository in the worker's variable SHEPHERD_REPOSITORY.
    """
    if steps == [{SET_DIRECTORY: {"directory": str(home())}}]:
        return True
    match steps:
        case [{**step}] if list(step) == [CLONE]:
            asked, repository = dict(step[CLONE]), os.environ.get(REPOSITORY)
            commit = str(asked.pop("commit_sha", ""))
            known = bool(repository) and asked == {"repository": repository}
            return known and re.fullmatch("[0-9a-f]{40}", commit) is not None
    return False


async def resume_sweeps(client: PrefectClient, since: datetime) -> None:
    """Reschedule the flow runs of sweeps that have crashed since a time, for example because their worker was killed.

    A resumed sweep neither loses nor repeats finished trials. If a sweep has crashed more than three times within an
    hour, it is not resumed.
    """
    crashed = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])))
    sweeps = WorkQueueFilter(name=WorkQueueFilterName(any_=[DRIVERS]))
    last_first = FlowRunSort.END_TIME_DESC
    for run in await client.read_flow_runs(flow_run_filter=crashed, work_queue_filter=sweeps, sort=last_first):
        if run.state is None or run.state.timestamp < since:
            continue
        states = await client.read_flow_run_states(run.id)
        count = sum(state.is_crashed() and run.state.timestamp - state.timestamp < WITHIN for state in states)
        if count <= CRASHES:
            again = Scheduled(message=f"resumed automatically after crash {count} of {CRASHES} in an hour")
            await client.set_flow_run_state(run.id, again, force=True)


def main(arguments: list[str]) -> None:
    """Serve a work pool until a signal arrives. This is the entry point of the program."""
    parser = argparse.ArgumentParser(prog="python -m flows.workers.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", required=True, help="a work pool of type process")
    parser.add_argument("--name", required=True, help="name of this worker in Prefect's pages")
    parser.add_argument("--limit", type=int, help="maximum number of concurrent flow runs, not counting sweeps")
    parser.add_argument("--queue", help="the only queue to serve; default: all queues of the pool")
    watch = "also set flow runs without heartbeats to the state CRASHED; resume sweeps that crashed after this time"
    parser.add_argument("--watch", type=float, metavar="SINCE", help=f"{watch} (seconds since 1970)")
    options = vars(parser.parse_args(arguments))
    if warning := describe_untried_version():
        print_safely(f"shepherd: warning: {warning}", file=sys.stderr)
    os.environ[WORKER] = "1"
    os.environ["SHEPHERD_HOME"] = str(home())  # flow runs store their state here, even if their code is a clone
    asyncio.run(ShepherdWorker(**options).start())


if __name__ == "__main__":
    main(sys.argv[1:])
