"""Pool of worker processes on this machine that train several runs at a time (`flows.sweeps.sweep_worker`)."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.process.signals import time_left
from flows.runs.warm import start_warm
from flows.sweeps import WORKER
from flows.sweeps.jobs import DEATHS, End, end_by
from flows.sweeps.trial import TrialRun
from rlcore.errors import exit_error

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
        if not self._say({"train": request | {"judged": on_evaluation is not None}}):
            return None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            event = message.pop("event")
            if event == "evaluated" and on_evaluation is not None:
                self._say({"go_on": on_evaluation()})
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
