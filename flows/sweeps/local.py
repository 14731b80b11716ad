"""Execution of jobs by worker processes of this machine (`flows.sweeps.sweep_worker`); each job is a Prefect task."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flows.process.signals import is_interrupted, time_left
from flows.runs.milestones import note_end
from flows.runs.warm import start_warm, warm_trainers
from flows.stages.summary import summarise
from flows.sweeps import WORKER
from flows.sweeps.jobs import DEATHS, End, Job, TrialRun, end_by
from flows.tasks import VERSION
from flows.workers.up import visible_gpus
from rlcore.errors import ProcessKilled, exit_error
from rlcore.train.boundary import Boundary

from prefect import task  # isort: skip - flows.tasks sets the environment that it reads
from prefect.cache_policies import NO_CACHE  # isort: skip
from prefect.states import Failed  # isort: skip


GRACE = 22.0  # seconds for the trainer of an interrupted worker to write a checkpoint
OnEvaluation = Callable[[], bool]  # returns True if training continues
OnProgress = Callable[[dict[str, Any]], None]


class WorkerProcesses:
    """Pool of worker processes that train runs. A worker is started when it is first needed, and again if it dies.

    Args:
        places: for each worker, a mapping with its additional environment variables, such as CUDA_VISIBLE_DEVICES.
        log: file that collects the output of all workers.
    """

    def __init__(self, places: Sequence[Mapping[str, str]], log: Path) -> None:
        self._log = log
        self._idle: queue.LifoQueue[_Worker | Mapping[str, str]] = queue.LifoQueue()  # running workers are used first
        for place in places:
            self._idle.put(place)
        self._alive: set[_Worker] = set()
        self._ending = threading.Event()

    def train(self, training: TrialRun, on_evaluation: OnEvaluation | None, on_progress: OnProgress) -> End:
        """Train a run to its end on a free worker and return its result.

        If the worker process is killed, the run is resumed from its last checkpoint. As many threads as there are
        workers may call this method at the same time.

        Args:
            training: the run.
            on_evaluation: called after each evaluation; training ends if it returns False. None: not called.
            on_progress: called with the data of each progress message of the worker.

        Returns:
            How the run ended.
        """
        worker = self._idle.get()
        try:
            for deaths in range(1, DEATHS + 1):
                if self._ending.is_set():
                    return End("interrupted")
                if not isinstance(worker, _Worker) or not worker.lives:
                    on_progress({"doing": "starting a worker process"})
                    worker = self._start(worker.place if isinstance(worker, _Worker) else worker)
                end = worker.train(training, on_evaluation, on_progress)
                if end is not None:
                    return end
                self._alive.discard(worker)
                if deaths < DEATHS and not self._ending.is_set():
                    on_progress({"doing": f"{worker.exit_error}; resuming from the last checkpoint"})
            assert isinstance(worker, _Worker)
            return End("interrupted") if self._ending.is_set() else worker.end_of_job
        finally:
            self._idle.put(worker)

    def end(self, interrupt: bool = False) -> None:
        """End the worker processes; if `interrupt` is True, workers that are training write a checkpoint first."""
        self._ending.set()
        for worker in tuple(self._alive):
            worker.end(interrupt)
        for worker in tuple(self._alive):
            worker.wait(time_left(GRACE) if interrupt else 5.0)

    def _start(self, place: Mapping[str, str]) -> _Worker:
        worker = _Worker(place, self._log)
        self._alive.add(worker)
        return worker


class _Worker:
    def __init__(self, place: Mapping[str, str], log: Path) -> None:
        self.place, self._log = place, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self.process = start_warm(WORKER, log=output, env=place)  # the driver forwards Ctrl-C

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    @property
    def end_of_job(self) -> End:
        """Result to record for the run that this worker was training when it died."""
        return end_by(exit_error(self.process.wait(), self.exit_error))

    @property
    def exit_error(self) -> str:
        """Clause that describes how the worker process ended, such as "worker 77 was killed by signal 9"."""
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"worker {self.process.pid} {how} (see its output in {self._log})"

    def train(self, training: TrialRun, on_evaluation: OnEvaluation | None, on_progress: OnProgress) -> End | None:
        """Train a run on this worker process and return its result; None if the process died."""
        request = {"run_dir": str(training.run_dir), "overrides": list(training.overrides)}
        if not self._say({"train": request | {"prunable": on_evaluation is not None}}):
            return None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            event = message.pop("event")
            if event == "evaluated" and on_evaluation is not None:
                self._say({"continue": on_evaluation()})
            elif event in ("progress", "stage"):
                on_progress(message)
            elif event == "ended":
                end = End(**message)
                return End("pruned") if end.state == "over" and training.state == "pruned" else end
        return None

    def end(self, interrupt: bool) -> None:
        if interrupt:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
        else:
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.process.kill()
        self.process.wait()

    def _say(self, what: dict[str, Any]) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps(what) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return True


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
            job.emit("ended", state=end.state, sentence=end.sentence)
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
        def should_continue() -> bool:
            return not self._review(job)

        for training in job.trainings:
            if training.state == "pruned" or (self._review(job) and training.state != "over"):
                _note_pruned(training)
                return End("pruned")
            if training.state == "over":
                continue
            end = self._crew.train(
                training,
                should_continue if job.number is not None else None,
                lambda facts: job.emit("job", **facts),
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


@task(name="train", version=VERSION, task_run_name="{job.label}", cache_policy=NO_CACHE, persist_result=False)
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
