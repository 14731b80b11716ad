"""Sweeps without a training: hands that write event logs of a known function, in whatever order a test wants."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.sweeps.driving import Sweep, trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import End, Job
from flows.sweeps.pace import TrialIntervals
from flows.sweeps.plan import SweepPlan, plan
from flows.sweeps.trial import TrialRun

EVALUATIONS = 4
PACE = TrialIntervals(every=1000, longest=512, budget=4000)
BASE = ["exp=ppo", f"algo.total_steps={PACE.budget}", f"evaluation.every={PACE.every}"]
SPACE = ["algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.update_epochs=interval(1,9)"]


class Killed(BaseException):
    """The driver's process is gone."""


def score(params: dict[str, Any], seed: int, evaluation: int) -> float:
    """The mean return of an evaluation: best at lr=1e-3, update_epochs=5."""
    lr, epochs = params["algo.optimizer.lr"], params["algo.update_epochs"]
    return 100 - 20 * abs(math.log10(lr) + 3) - abs(epochs - 5) - 10 / evaluation + seed % 7 / 10


class Hands:
    """Jobs are done when they are waited for: one of those that were started, drawn at random; all its events then."""

    def __init__(self, sweep: Sweep, places: int, seed: int) -> None:
        self.sweep, self.places = sweep, places
        self.order = random.Random(seed)
        self.running: list[Job] = []
        self.most = 0
        self.started: list[str] = []

    @property
    def free(self) -> bool:
        return len(self.running) < self.places

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def start(self, job: Job) -> None:
        assert self.free
        self.running.append(job)
        self.started.append(job.label)
        self.most = max(self.most, len(self.running))

    def wait(self) -> tuple[Job, End]:
        job = self.running.pop(self.order.randrange(len(self.running)))
        return job, self.do(job)

    def do(self, job: Job) -> End:
        assert job.number is not None
        params = self.sweep.study.params(job.number)
        if params["algo.update_epochs"] == 9:
            return End("failed", "nine is too many")
        for training in job.trainings:
            if self.sweep.review(job):
                return End("pruned")
            while (done := len(training.scores)) < EVALUATIONS:
                evaluate(training, params, done + 1)
                if done + 1 < EVALUATIONS and self.sweep.review(job):
                    return End("pruned")
        return End("over")


def evaluate(training: TrialRun, params: dict[str, Any], number: int) -> None:
    """Write the events of an evaluation into a run's log, and at the last one its end."""
    seed = int(training.run_dir.name.removeprefix("seed_"))
    steps, greedy = PACE.every * number, {"mean": score(params, seed, number)}
    events: list[dict[str, Any]] = [{"kind": "checkpoint", "policy_steps": steps}]
    events += [{"kind": "evaluation", "policy_steps": steps, "final": False, "greedy": greedy}]
    if number == EVALUATIONS:
        events.append({"kind": "end", "status": "finished", "policy_steps": steps})
    training.run_dir.mkdir(parents=True, exist_ok=True)
    with open(training.run.events, "a") as log:
        log.writelines(json.dumps({"time": 0.0, **event}) + "\n" for event in events)


def made(folder: Path, name: str, *overrides: str) -> tuple[SweepFolder, SweepPlan]:
    """A sweep's folder with a plan over `SPACE`."""
    wanted = replace(plan([*SPACE, *BASE, f"sweep.name={name}", *overrides]), pace=PACE)
    sweep_folder = SweepFolder(name)
    sweep_folder.write(wanted, folder / name)
    return sweep_folder, wanted


def drive(folder: SweepFolder, places: int = 3, seed: int = 0) -> Sweep:
    """Drive a sweep to the end of its trials, as its flow does."""
    return driven(Sweep(folder, folder.read()), places, seed)


def driven(sweep: Sweep, places: int = 3, seed: int = 0) -> Sweep:
    """The sweep at the end of its trials."""
    sweep.hands = Hands(sweep, places, seed)
    for job in trials(sweep):
        sweep.hands.start(job)
    return sweep


def came_to(sweep: Sweep) -> list[tuple[Any, ...]]:
    """All that the study says of each trial, but for times."""
    return [
        (t.number, t.state.name, t.params, t.value, t.intermediate_values, t.user_attrs) for t in sweep.study.trials
    ]
