"""Worker process that trains one run after another, with all imports done once: `python -m flows.sweeps.sweep_worker`.

The worker exchanges lines of JSON with the process that started it, the driver of the sweep. To train a run, the driver
sends `{"train": {run_dir, overrides, prunable}}`. The worker sends these events:

    ready        once, when it can accept requests
    progress     during a run: current metrics
    stage        during a run: a failure that is being retried
    evaluated    after each evaluation, if `prunable` is true; the worker then waits for the answer, {"continue": true}
                 or {"continue": false}
    ended        at the end of a run, with the fields of `flows.sweeps.jobs.End`

If the worker receives a signal, it writes a checkpoint and exits. If its parent process ends, it exits at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

from flows.process.signals import CODE, TrainingInterrupted, terminable
from flows.runs.create import new_run
from flows.runs.listeners import subscribe
from flows.runs.pruning import prune_by
from flows.sweeps.jobs import end_by
from flows.train import training_flow
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.system.imports import large_imports
from rlcore.system.printable import print_traceback
from rlcore.train.boundary import Boundary

REPORT_EVERY = 0.5  # minimal seconds between two progress events
FREE_WITHIN = 30.0  # maximal seconds to wait for the processes of a killed worker to exit


class SweepWorker:
    """Loop that reads requests from stdin, trains, and writes events to stdout."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # output of libraries goes to stderr, because stdout is for events
        self._reported = 0.0

    def serve(self) -> None:
        """Read requests from stdin and train the requested runs, one after another, until stdin is closed."""
        self._send("ready")
        while line := sys.stdin.readline():
            request = json.loads(line)["train"]
            try:
                self._train(**request)
            except Exception as error:
                if not isinstance(error, UserError):
                    print_traceback()
                self._send("ended", **end_by(error)._asdict())
            else:
                self._send("ended", state="over")

    def _train(self, run_dir: str, overrides: list[str], prunable: bool) -> None:
        """Train a new run, or resume an unfinished one; if `prunable` is True, the driver may prune it."""
        run = RunDirectory(run_dir)
        _wait_until_free(run)
        if not run.config.exists():
            run = new_run(overrides)
        _measure_vectorization(run)
        with subscribe(self._listen), prune_by(self._ask) if prunable else nullcontext():
            training_flow(run.read_config()["algo"]["name"]).fn(run_dir=str(run.path))

    def _listen(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress":
            if time.monotonic() - self._reported >= REPORT_EVERY:
                self._reported = time.monotonic()
                self._send("progress", **facts)
        elif kind == "stage" and facts.get("failure"):
            self._send("stage", doing=facts["doing"])

    def _ask(self, run: RunDirectory, at: Boundary) -> bool:
        """After an evaluation, ask the driver of the sweep if training should end; return True if it should.

        Returns False at points in training without an evaluation.
        """
        if "evaluate" not in at.due:
            return False
        self._send("evaluated", policy_steps=at.policy_steps)
        line = sys.stdin.readline()
        return bool(line) and not json.loads(line)["continue"]

    def _send(self, event: str, **facts: Any) -> None:
        self._output.write(json.dumps({"event": event, **facts}) + "\n")


def _wait_until_free(run: RunDirectory) -> None:
    """Wait until no other process has locked the run.

    After a worker was killed, its child processes need some time to end.
    """
    deadline = time.monotonic() + FREE_WITHIN
    while run.is_taken() and time.monotonic() < deadline:
        time.sleep(0.1)


def _measure_vectorization(run: RunDirectory) -> None:
    """Measure if the vectorized code of the run's environment is faster than separate environments.

    The measurement is made in this process and cached. The trainer processes are forked from it and inherit the result.
    """
    from rlcore.envs.vector.native import is_faster  # `load` has imported it before the fork

    env = config_of(run).env
    if env.vectorization == "auto":
        is_faster(env, env.num_envs)


def load() -> None:
    """Import modules that a training run needs, so that processes forked from this one need not import them."""
    with large_imports("prefect"):
        import hydra  # noqa: F401

        import flows.stages.collect  # noqa: F401 - a stage is imported by name, this one in the trainer
        import rlcore.envs.make  # functions of `flows.runs.check` import these modules, which takes time
        import rlcore.envs.vector.native  # measured once by the worker, and inherited by trainers
        import rlcore.evaluation.policy
        import rlcore.train.fabric  # noqa: F401


def main() -> NoReturn:
    """Train runs on request until stdin is closed or a signal arrives. This is the entry point of the program."""
    code = 0
    try:
        with terminable(for_good=True):
            SweepWorker().serve()
    except TrainingInterrupted:
        code = CODE
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # in a forked process no caller would pass the exit code on


if __name__ == "__main__":
    main()
