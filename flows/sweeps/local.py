"""Execution of jobs (trials or runs of a group) by worker processes of this machine; each job is a Prefect task."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.process.signals import is_interrupted
from flows.runs.listeners import emit
from flows.runs.milestones import note_end
from flows.runs.warm import warm_trainers
from flows.stages.summary import summarise
from flows.sweeps import WORKER
from flows.sweeps.crew import WorkerProcesses
from flows.sweeps.jobs import End, Job, end_by
from flows.sweeps.trial import TrialRun
from flows.tasks import VERSION
from flows.workers.up import visible_gpus
from rlcore.errors import ProcessKilled
from rlcore.train.boundary import Boundary

from prefect import task  # isort: skip - flows.tasks sets the environment that it reads
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Failed  # isort: skip


class LocalExecutor:
    """Executor that trains jobs on worker processes of this machine.

    Each job is a Prefect task of the running flow. The task controls one worker process.

    Args:
        crew: pool of worker processes.
        places: number of worker processes.
        review: returns True if a job should end now (pruning), based on the event logs of the job's runs. It is called
            from several threads.
    """

    def __init__(self, crew: WorkerProcesses, places: int, review: Callable[[Job], bool]) -> None:
        self._crew, self._places, self._review = crew, places, review
        self._busy = 0
        self._ends: dict[Job, End] = {}
        self._ended: queue.SimpleQueue[Job] = queue.SimpleQueue()

    @property
    def free(self) -> bool:
        """True if a worker is idle."""
        return self._busy < self._places

    @property
    def busy(self) -> bool:
        """True if a worker is training."""
        return self._busy > 0

    def start(self, job: Job) -> None:
        """Start a job on a free worker."""
        self._busy += 1
        _train.submit(self, job).add_done_callback(lambda _: self._ended.put(job))

    def wait(self) -> tuple[Job, End]:
        """Wait until a job ends; return the job and its result."""
        job = self._ended.get()
        self._busy -= 1
        lost = End("unfinished", "Prefect could not run its task; see the log for the reason", ProcessKilled.__name__)
        end = self._ends.pop(job, lost)
        if end.state != "unfinished":
            emit("ended", {"label": job.label, "number": job.number, "state": end.state, "sentence": end.sentence})
        return job, end

    def train(self, job: Job) -> End:
        """Train the unfinished runs of a job, one after another, and return the result of the job."""
        try:
            end = self._end_of(job)
        except Exception as error:
            end = end_by(error)
            if end.state == "failed":
                raise
        self._ends[job] = end
        return end

    def _end_of(self, job: Job) -> End:
        def go_on() -> bool:
            return not self._review(job)

        for training in job.trainings:
            if training.state == "pruned" or (self._review(job) and training.state != "over"):
                _note_pruned(training)
                return End("pruned")
            if training.state == "over":
                continue
            end = self._crew.train(
                training,
                go_on if job.number is not None else None,
                lambda facts: emit("job", {"label": job.label, "number": job.number, **facts}),
            )
            if end.state != "over":
                return end
        return End("over")


@contextmanager
def local_executor(
    workers: int, accelerator: str, log: Path, review: Callable[[Job], bool] = lambda job: False
) -> Iterator[LocalExecutor]:
    """Context manager that starts worker processes on this machine, and ends them on exit.

    Args:
        workers: number of worker processes. If the runs use GPUs, there is at most one for each visible GPU.
        accelerator: `fabric.accelerator` of the runs.
        log: file for the output of the worker processes.
        review: returns True if a job should end now (pruning).

    Yields:
        An executor that trains jobs on the worker processes.
    """
    gpus = visible_gpus() if accelerator in ("cuda", "gpu") else []
    places = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:workers]] or [{}] * workers
    with warm_trainers(WORKER):
        crew = WorkerProcesses(places, log)
        try:
            yield LocalExecutor(crew, len(places), review)
        except BaseException as error:
            crew.end(interrupt=not isinstance(error, Exception) or is_interrupted())
            raise
        finally:
            crew.end()


def _name(parameters: dict[str, Any]) -> str:
    return parameters["job"].label


options: dict[str, Any] = {"task_run_name": _name, "cache_policy": NO_CACHE, "persist_result": False}


@task(name="train", version=VERSION, **options)
def _train(executor: LocalExecutor, job: Job) -> Any:
    end = executor.train(job)
    return Failed(message=end.sentence) if end.state in ("failed", "unfinished") else end.state


def _note_pruned(training: TrialRun) -> None:
    """Record in a run's event log and summary that it was pruned, unless they already contain this.

    They do not contain it if the sweep was killed after the pruner's decision.
    """
    if training.state == "begun":
        note_end(training.run, Boundary(training.policy_steps, (), False, "pruned"))
        summarise(training.run)
