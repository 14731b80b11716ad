"""A process that trains one run after another and imports what that takes once: `python -m flows.sweeps.sweep_worker`.

It is told and tells in lines of JSON. In: `{"train": {run_dir, overrides, judged}}`, and to a question
`{"go_on": true|false}`. Out: `ready`; of a training `progress`, `stage`, `evaluated` (the question, where `judged`); at
its end `ended`, with how (`flows.sweeps.jobs.End`). A signal ends it with a checkpoint, the end of its parent at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from flows.process.signals import CODE, TrainingInterrupted, terminable
from flows.runs.create import new_run
from flows.runs.listeners import listening
from flows.runs.pruning import judge_by
from flows.sweeps.jobs import end_by
from flows.train import training_flow
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.imports import large_imports
from rlcore.system.printable import print_traceback
from rlcore.train.boundary import Boundary

TELL_EVERY = 0.5  # seconds between two lines on progress
FREE_WITHIN = 30.0  # seconds in which the processes of a driver that was killed have left a run


class SweepWorker:
    """Answers the driver on the other end of the two pipes."""

    def __init__(self) -> None:
        self._output = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer
        self._told = 0.0

    def serve(self) -> None:
        """Train what is asked for, until nobody asks any more."""
        self._tell("ready")
        while line := sys.stdin.readline():
            asked = json.loads(line)["train"]
            try:
                self._train(**asked)
            except Exception as error:
                if not isinstance(error, UserError):
                    print_traceback()
                self._tell("ended", **end_by(error)._asdict())
            else:
                self._tell("ended", state="over")

    def _train(self, run_dir: str, overrides: list[str], judged: bool) -> None:
        """The training flow's function on a run, new or half-done."""
        run = RunDirectory(run_dir)
        _wait_until_free(run)
        if not run.config.exists():
            run = new_run(overrides)
        with listening(self._listen), judge_by(self._ask if judged else _go_on):
            training_flow(run.read_config()["algo"]["name"]).fn(run_dir=str(run.path))

    def _listen(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "progress":
            if time.monotonic() - self._told >= TELL_EVERY:
                self._told = time.monotonic()
                self._tell("progress", **facts)
        elif kind == "stage" and facts.get("failure"):
            self._tell("stage", doing=facts["doing"])

    def _ask(self, run: RunDirectory, at: Boundary) -> bool:
        """Ask the driver, where it has an evaluation to judge by, whether it wants the training to end here."""
        if "evaluate" not in at.due:
            return False
        self._tell("evaluated", policy_steps=at.policy_steps)
        line = sys.stdin.readline()
        return bool(line) and not json.loads(line)["go_on"]

    def _tell(self, event: str, **facts: Any) -> None:
        self._output.write(json.dumps({"event": event, **facts}) + "\n")


def _go_on(run: RunDirectory, at: Boundary) -> bool:
    return False


def _wait_until_free(run: RunDirectory) -> None:
    """Wait for the processes of a worker that was killed just now; they end with it."""
    deadline = time.monotonic() + FREE_WITHIN
    while run.is_taken() and time.monotonic() < deadline:
        time.sleep(0.1)


def load() -> None:
    """Import what else a training's driver takes, for all that are forked from this process."""
    with large_imports("prefect"):
        import hydra  # noqa: F401

        import rlcore.envs.make  # by `flows.runs.check` inside its functions, for a mistake's sake
        import rlcore.judge.policy  # likewise
        import rlcore.train.fabric  # noqa: F401 - likewise


def main() -> NoReturn:
    """Entry point."""
    code = 0
    try:
        with terminable(for_good=True):
            SweepWorker().serve()
    except TrainingInterrupted:
        code = CODE
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # in a fork nobody else takes the code


if __name__ == "__main__":
    main()
