"""Execution of a sweep's jobs on a Prefect work pool, by workers that may be on other machines.

A job is a trial, with one training run for each seed. Each training run becomes a flow run of the training deployment.
The sweep's flow polls the states of these flow runs. It reads the event logs of the training runs from storage that all
machines share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from flows.config.compose import compose
from flows.process.network import survive_outages
from flows.process.signals import time_left
from flows.runs.pruning import prune
from flows.settings import configure_environment
from flows.sweeps.driving import Sweep
from flows.sweeps.jobs import DEATHS, FAULTS, End, Job, TrialRun
from rlcore import plugins
from rlcore.errors import ProcessKilled
from rlcore.store.directory import RunDirectory

configure_environment()  # Prefect reads its settings when it is imported

from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.objects import FlowRun, StateType  # noqa: E402
from prefect.deployments import run_deployment  # noqa: E402
from prefect.states import Cancelled, Cancelling, Scheduled  # noqa: E402

LOOK_EVERY = 2.0  # seconds between two polls
PARTING, PARTING_LOOK = 20.0, 0.5  # seconds that a cancelled sweep waits for its trials, and between two polls


class WorkPoolExecutor:
    """Executor that trains the jobs of a sweep (its trials) as flow runs of `train-<algorithm>/<deployment>`.

    At most `sweep.workers` jobs run at the same time.

    Args:
        sweep: the sweep that the jobs belong to.
        deployment: name of the training deployment, "default" or "gpu".
    """

    def __init__(self, sweep: Sweep, deployment: str) -> None:
        self._sweep, self._deployment = sweep, deployment
        self._running: dict[Job, UUID] = {}
        self._crashes: dict[Job, int] = {}
        self._ended: list[tuple[Job, End]] = []

    @property
    def free(self) -> bool:
        """True if another job (trial) can be started, because fewer than `sweep.workers` are running."""
        return len(self._running) + len(self._ended) < self._sweep.config.workers

    @property
    def busy(self) -> bool:
        """True if a job was started that `wait` has not returned yet."""
        return bool(self._running or self._ended)

    def start(self, job: Job) -> None:
        """Start the first unfinished run of a job (the runs of a trial, one per seed).

        If an earlier process of the sweep has already submitted a flow run for it, that flow run is used.
        """
        pruned = self._sweep.review(job)
        training = job.unfinished
        if pruned or training is None or training.state == "pruned":
            self._ended.append((job, End("over" if training is None and not pruned else "pruned")))
        else:
            self._running[job] = self._submit(job, training)

    def wait(self) -> tuple[Job, End]:
        """Wait until a job ends; return the job and its result. The server is polled every two seconds."""
        while not self._ended:
            time.sleep(LOOK_EVERY)
            with survive_outages(), get_client(sync_client=True) as client:
                for job, flow_run in tuple(self._running.items()):
                    self._look(job, client.read_flow_run(flow_run))
        job, end = self._ended.pop(0)
        if end.state != "unfinished":
            job.emit("ended", state=end.state, sentence=end.sentence)
        return job, end

    def cancel(self) -> None:
        """Cancel the flow runs of all jobs, and wait at most 20 s until they have written their checkpoints."""
        waiting = set(self._running.values())
        deadline = time.monotonic() + time_left(PARTING)
        with get_client(sync_client=True) as client:
            for flow_run in waiting:
                # A scheduled flow run has no process yet, so it can be cancelled at once.
                waits = (state := client.read_flow_run(flow_run).state) is not None and state.is_scheduled()
                client.set_flow_run_state(flow_run, Cancelled() if waits else Cancelling(), force=waits)
            while waiting and time.monotonic() < deadline:
                time.sleep(PARTING_LOOK)
                states = {flow_run: client.read_flow_run(flow_run).state for flow_run in waiting}
                waiting = {flow_run for flow_run, state in states.items() if state is None or not state.is_final()}

    def _look(self, job: Job, flow_run: FlowRun) -> None:
        """React to the current state of a job's flow run.

        - running: request that the training run ends at its next checkpoint (`prune`) if the pruner ends the trial.
        - completed: start the next run of the job.
        - crashed: retry the flow run, at most `DEATHS` times.
        - other final state: record the result of the job.
        """
        training = job.unfinished or job.trainings[-1]
        state = flow_run.state
        if state is None or not state.is_final():
            if training.state == "begun" and self._sweep.review(job):
                prune(RunDirectory(training.run_dir), f"pruned by sweep {self._sweep.folder.name}")
        elif state.type == StateType.COMPLETED:
            del self._running[job]
            self.start(job)
        elif state.type == StateType.CRASHED and self._crashes.get(job, 0) < DEATHS:
            self._crashes[job] = self._crashes.get(job, 0) + 1
            job.emit("job", doing="crashed; resuming from the last checkpoint")
            self._retry(flow_run.id)
        else:
            del self._running[job]
            fault = ProcessKilled.__name__ if state.type == StateType.CRASHED else state.name or ""
            fault = fault if fault in FAULTS else ""
            end = End("unfinished" if fault else "failed", state.message or state.type.value, fault)
            self._ended.append((job, end))

    def _submit(self, job: Job, training: TrialRun) -> UUID:
        """Submit a flow run for a training run and return its id. A second call for the same run submits no new one."""
        algo = compose(training.overrides)[0].algo.name
        seed = f", {training.run_dir.name.replace('_', ' ')}" if len(job.trainings) > 1 else ""
        flow_run = run_deployment(
            f"train-{algo}/{self._deployment}",
            parameters={"overrides": [*training.overrides, *plugins.as_typed()]},
            flow_run_name=f"{job.label}{seed}",
            timeout=0,
            as_subflow=True,
            tags=[self._sweep.folder.name],
            idempotency_key=f"{self._sweep.folder.id}/{training.run_dir.parent.name}/{training.run_dir.name}",
        )
        assert isinstance(flow_run, FlowRun)
        if flow_run.state and flow_run.state.is_final() and training.state != "over":
            self._retry(flow_run.id)  # it ended under an earlier driver, and the sweep was resumed
        return flow_run.id

    @staticmethod
    def _retry(flow_run: UUID) -> None:
        """Retry a flow run, as `prefect flow-run retry` does; it resumes from the last checkpoint of its run."""
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Scheduled(message="retried by its sweep"), force=True)


@contextmanager
def cancel_with(flow_run: UUID, executor: WorkPoolExecutor) -> Iterator[None]:
    """Context manager that cancels the running trials of a sweep if the flow run of the sweep is cancelled.

    Args:
        flow_run: id of the sweep's flow run.
        executor: the executor, which runs the trials.

    Yields:
        Nothing.
    """
    try:
        yield
    except BaseException:
        with survive_outages():
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                executor.cancel()
        raise
