"""Sweeps without training: an executor that writes event logs with a known score function, in any order."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.sweeps.driving import Sweep, trials
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import End, Job, TrialRun
from flows.sweeps.plan import SweepPlan, TrialIntervals, plan

EVALUATIONS = 4
PACE = TrialIntervals(every=1000, longest=512, budget=4000)
BASE = ["exp=ppo", f"algo.total_steps={PACE.budget}", f"evaluation.every={PACE.every}"]
SPACE = ["algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.update_epochs=interval(1,9)"]


def score(params: dict[str, Any], seed: int, evaluation: int) -> float:
    """Return the mean return of an evaluation, with the optimum at lr=1e-3, update_epochs=5."""
    lr, epochs = params["algo.optimizer.lr"], params["algo.update_epochs"]
    return 100 - 20 * abs(math.log10(lr) + 3) - abs(epochs - 5) - 10 / evaluation + seed % 7 / 10


class FakeExecutor:
    """Executor that completes a random started job, and writes all its events, at each `wait`."""

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
    """Write the events of an evaluation to a run's event log, and the end event after the last one."""
    seed = int(training.run_dir.name.removeprefix("seed_"))
    steps, greedy = PACE.every * number, {"mean": score(params, seed, number)}
    events: list[dict[str, Any]] = [{"kind": "checkpoint", "policy_steps": steps}]
    events += [{"kind": "evaluation", "policy_steps": steps, "final": False, "greedy": greedy}]
    if number == EVALUATIONS:
        events.append({"kind": "end", "status": "finished", "policy_steps": steps})
    training.run_dir.mkdir(parents=True, exist_ok=True)
    with open(training.run.events, "a") as log:
        log.writelines(json.dumps({"time": 0.0, **event}) + "\n" for event in events)


def make_sweep(folder: Path, name: str, *overrides: str) -> tuple[SweepFolder, SweepPlan]:
    """Create the folder of a sweep over `SPACE`, and return it with its plan."""
    sweep_plan = replace(plan([*SPACE, *BASE, f"sweep.name={name}", *overrides]), pace=PACE)
    sweep_folder = SweepFolder(name)
    sweep_folder.write(sweep_plan, folder / name)
    return sweep_folder, sweep_plan


def drive(folder: SweepFolder, places: int = 3, seed: int = 0) -> Sweep:
    """Run all trials of a sweep, as its flow does."""
    return drive_sweep(Sweep(folder, folder.read()), places, seed)


def drive_sweep(sweep: Sweep, places: int = 3, seed: int = 0) -> Sweep:
    """Run all trials of a sweep, and return the sweep."""
    sweep.executor = FakeExecutor(sweep, places, seed)
    for job in trials(sweep):
        sweep.executor.start(job)
    return sweep


def trial_results(sweep: Sweep) -> list[tuple[Any, ...]]:
    """Return all data of the study for each trial, except times."""
    return [
        (t.number, t.state.name, t.params, t.value, t.intermediate_values, t.user_attrs) for t in sweep.study.trials
    ]
