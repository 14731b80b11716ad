"""The jobs of a sweep done by processes of this machine, each job a task of the sweep's flow."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.process.signals import interrupted
from flows.runs.listeners import tell
from flows.runs.milestones import note_end
from flows.stages.summary import summarise
from flows.sweeps.crew import Crew, End
from flows.sweeps.driving import Job, Sweep
from flows.sweeps.trial import Training
from flows.tasks import VERSION
from rlcore.train.boundary import Boundary

from prefect import task  # isort: skip - flows.tasks sets the environment that it reads
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Failed  # isort: skip


@contextmanager
def here(sweep: Sweep) -> Iterator[None]:
    """Have the jobs of a sweep done by processes of this machine."""
    # Here: `with warm_trainers():` around the crew, once flows.runs.warm is there.
    crew = Crew(sweep.config.workers, sweep.folder.workers_log)
    sweep.hands = LocalHands(sweep, crew)
    try:
        yield
    except BaseException as error:
        crew.end(interrupt=not isinstance(error, Exception) or interrupted())
        raise
    finally:
        crew.end()


class LocalHands:
    """Jobs as Prefect tasks of the sweep's flow, each of which drives a worker process of this machine."""

    def __init__(self, sweep: Sweep, crew: Crew) -> None:
        self._sweep, self._crew = sweep, crew
        self._busy = 0
        self._ends: dict[Job, End] = {}
        self._ended: queue.SimpleQueue[Job] = queue.SimpleQueue()

    @property
    def free(self) -> bool:
        """Whether a worker has nothing to do."""
        return self._busy < self._sweep.config.workers

    @property
    def busy(self) -> bool:
        """Whether a worker trains."""
        return self._busy > 0

    def start(self, job: Job) -> None:
        """Begin a job on a worker that is free."""
        self._busy += 1
        _train.submit(self, job).add_done_callback(lambda _: self._ended.put(job))

    def wait(self) -> tuple[Job, End]:
        """The next job that ends, and how."""
        job = self._ended.get()
        self._busy -= 1
        return job, self._ends.pop(job, End("failed", "Prefect could not run its task; the log says why"))

    def train(self, job: Job) -> End:
        """Do a job: what its log says already is not done again."""
        self._ends[job] = end = self._end_of(job)
        return end

    def _end_of(self, job: Job) -> End:
        sweep = self._sweep
        for training in job.trainings:
            if training.state == "pruned" or (sweep.review(job) and training.state != "over"):
                _note_pruned(training)
                return End("pruned")
            if training.state == "over":
                continue
            end = self._crew.train(
                training,
                (lambda: not sweep.review(job)) if job.number is not None else None,
                lambda facts: tell("job", {"label": job.label, "number": job.number, **facts}),
            )
            if end.state != "over":
                return end
        return End("over")


def _called(parameters: dict[str, Any]) -> str:
    return parameters["job"].label


options: dict[str, Any] = {"task_run_name": _called, "cache_policy": NO_CACHE, "persist_result": False}


@task(name="train", version=VERSION, **options)
def _train(hands: LocalHands, job: Job) -> Any:
    """One job."""
    end = hands.train(job)
    return Failed(message=end.sentence) if end.state == "failed" else end.state


def _note_pruned(training: Training) -> None:
    """Have a run that was to end when its driver was killed say so."""
    if training.state == "begun":
        note_end(training.run, Boundary(training.env_steps, (), False, "pruned"))
        summarise(training.run)
