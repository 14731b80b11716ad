"""Jobs of sweeps and groups, the runs of a job with their results, and the interface of executors, which train jobs.

A job is a trial of a sweep with one run for each seed, or one run of a group. Results are read from event logs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import numpy as np

from flows.compare import statistics
from flows.runs.lineage import inputs_as_given, place_inputs
from flows.runs.listeners import emit
from flows.runs.milestones import is_over
from flows.sweeps.plan import SweepConfig, TrialIntervals, merge
from rlcore.config.learning_half import learning_half
from rlcore.config.run import RunConfig
from rlcore.config.values import plain
from rlcore.errors import DiskFault, MachineFault, OutOfMemory, ProcessKilled, RunError, machine_fault
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.history import history
from rlcore.store.series import EPISODE_RETURN, Quantity
from rlcore.train.fingerprint import differences

FAULTS: dict[str, type[MachineFault]] = {kind.__name__: kind for kind in (DiskFault, OutOfMemory, ProcessKilled)}
DEATHS = 3  # a job whose workers die this often is not tried again, because the job is probably the cause
# Defaults of every trial. They turn off features that cost time and are only useful if a user examines a single run.
LEAN = (
    "env.capture_video=false",
    "evaluation.baseline_episodes=10",
    "metric.logger.name=mlflow",
    "algo.run_test=false",
)


class End(NamedTuple):
    """Result of a job (the runs of a trial, or one run of a group): how it ended, and why.

    Attributes:
        state: "over" (completed), "pruned", "failed", "interrupted", or "unfinished" (ended by a machine fault).
        sentence: the reason, if the job failed or is unfinished.
        fault: name of the machine fault, a key of `FAULTS`, if the job is unfinished.
    """

    state: str
    sentence: str = ""
    fault: str = ""


def end_by(error: Exception) -> End:
    """Return the result of a job that raised this exception: "unfinished" after a machine fault, otherwise "failed"."""
    fault = machine_fault(error)
    sentence = str(fault or error) or type(error).__name__
    return End("unfinished", sentence, type(fault).__name__) if fault else End("failed", sentence)


class Job:
    """Unit of work of a sweep or group: the runs of a trial, or one run of a group.

    One worker trains the runs of a job, one after another.

    Args:
        label: name in messages, such as "trial 7: algo.gamma=0.9".
        trainings: the runs.
        number: number of the trial; None if the job is not a trial.
    """

    def __init__(self, label: str, trainings: Sequence[TrialRun], number: int | None = None) -> None:
        self.label, self.trainings, self.number = label, list(trainings), number

    @property
    def unfinished(self) -> TrialRun | None:
        """First run that is not finished; None if all are."""
        return next((training for training in self.trainings if training.state != "over"), None)

    def emit(self, kind: str, /, **facts: Any) -> None:
        """Report an event of this job to the listeners of this process (progress lines, report page)."""
        emit(kind, {"label": self.label, "number": self.number, **facts})


class Executor(Protocol):
    """Interface of executors, which train jobs: on worker processes of this machine, or on a Prefect work pool."""

    @property
    def free(self) -> bool:
        """True if a worker is free, so that another job can be started."""
        ...

    @property
    def busy(self) -> bool:
        """True if a job was started that `wait` has not returned yet."""
        ...

    def start(self, job: Job) -> None:
        """Start a job, or resume it if some of its runs were trained before."""
        ...

    def wait(self) -> tuple[Job, End]:
        """Wait until a job ends; return the job and its result."""
        ...


def train_jobs(executor: Executor, jobs: Iterable[Job]) -> Generator[Job, None, list[tuple[Job, End]]]:
    """Yield jobs, each when a worker is free; the caller must start each. Return the jobs that did not complete."""
    failed: list[tuple[Job, End]] = []

    def wait() -> None:
        job, end = executor.wait()
        if end.state in ("failed", "unfinished"):
            failed.append((job, end))

    for job in jobs:
        while not executor.free:
            wait()
        yield job
    while executor.busy:
        wait()
    return failed


@dataclass(frozen=True)
class TrialRun:
    """Training run of a sweep or of a group of runs.

    Attributes:
        run_dir: folder of the run, which may not exist yet.
        overrides: overrides of `shepherd train` that define the run.
    """

    run_dir: Path
    overrides: tuple[str, ...]

    @property
    def run(self) -> RunDirectory:
        """Directory of the run."""
        return RunDirectory(self.run_dir)

    @property
    def state(self) -> str:
        """State of the run: "new", "begun" (started but unfinished), "pruned", or "over" (finished)."""
        if not self.run.config.exists():
            return "new"
        status = self.run.read_summary().get("status")
        return "pruned" if status == "pruned" else "over" if is_over(self.run) else "begun"

    @property
    def policy_steps(self) -> int:
        """Policy steps taken so far, according to the event log."""
        return history(self.run.events).policy_steps

    @property
    def scores(self) -> list[float]:
        """Mean greedy returns of the evaluations during training, in order."""
        return [score for _, score in self.evaluations()]

    def evaluations(self, quantity: Quantity = EPISODE_RETURN) -> list[tuple[int, float]]:
        """Return the pairs (policy steps, value of a quantity) of the greedy evaluations during training, in order."""
        log = history(self.run.events)
        logged = {e["policy_steps"]: e["values"] for e in log.of("callback") if e["method"] == "on_evaluation"}
        found = list[tuple[int, float]]()
        for event in log.evaluations:
            steps, value = event["policy_steps"], quantity.mean(event["greedy"])
            value = logged.get(steps, {}).get(quantity.name) if value is None else value
            if value is not None:
                found.append((steps, value))
        return found

    def value(self, config: SweepConfig, pace: TrialIntervals) -> float:
        """Return the mean over the evaluations that `sweep.objective` selects; raise RunError if there are none."""
        quantity = config.quantity
        if config.objective == "final":
            final = history(self.run.events).last("evaluation", final=True)
            mean = quantity.mean(final["greedy"]) if final else None
            scores = [] if mean is None else [mean]
        else:
            evaluations = self.evaluations(quantity)
            scores = [score for _, score in evaluations]
            scores = scores if config.objective == "all" else pace.recent(evaluations, config.last)
        if not scores:
            missing = f" with {quantity.words} in info or from a callback" if quantity.name else ""
            raise RunError(
                f"{self.run_dir}: the run has no evaluation{missing}, so its value (sweep.objective="
                f"{config.objective}, sweep.metric={config.metric}) cannot be computed"
            )
        return fmean(scores)


def differing_config(run: RunDirectory, config: RunConfig, evaluation: bool = False) -> tuple[str, Any, Any] | None:
    """Compare the config of an existing run with another config; return the first difference, or None.

    Args:
        run: the existing run.
        config: the other config.
        evaluation: False compares only keys that affect learning. True compares the group `evaluation` and `stop`,
            too, because the evaluations of a trial determine its value.

    Returns:
        (key, value in the run, value in `config`), or None.
    """

    def deciding(of: RunConfig) -> dict[str, Any]:
        half = learning_half(of)
        return half | ({part: plain(getattr(of, part)) for part in ("evaluation", "stop")} if evaluation else {})

    there, _ = place_inputs(config_of(run), run.read_config(), inputs_as_given(run))
    return next(differences(deciding(there), deciding(config)), None)


def trainings(folder: Path, base: Sequence[str], seeds: Sequence[int], group: str) -> list[TrialRun]:
    """Return one run with the overrides `base` for each seed, in `<folder>/seed_<seed>`. Nothing is written."""
    found = []
    for seed in seeds:
        place = folder / f"seed_{seed}"
        quoted = str(place).replace("'", r"\'")
        ours = [f"seed={seed}", f"group={group}", f"run_dir='{quoted}'"]
        found.append(TrialRun(place, tuple(merge(base, ours))))
    return found


def trial_overrides(base: Sequence[str], config: SweepConfig) -> list[str]:
    """Return the overrides of a trial's runs: `base`, and settings that make trials faster.

    For example, trials record no videos. They do not register models either: a sweep registers one model at its end, if
    the best trial proved better than the default configuration.

    Args:
        base: overrides that define the trial; they take precedence over the faster settings.
        config: settings of the sweep.

    Returns:
        The overrides.
    """
    defaults = [line for line in LEAN if not (config.objective == "final" and line.startswith("algo.run_test"))]
    if any(line.startswith(("logger=", "logger@metric.logger=")) for line in base):  # a group does not set the key
        defaults = [line for line in defaults if not line.startswith("metric.logger.name=")]
    return merge(merge(defaults, base), ["model_manager.disabled=true"])


def read_reports(
    runs: Sequence[TrialRun], pace: TrialIntervals, quantity: Quantity = EPISODE_RETURN
) -> Iterator[tuple[int, float]]:
    """Return the pairs (policy steps, mean of a quantity) of the evaluations after which a pruner may end a trial.

    The last evaluation of a completed run is omitted, because ending the trial there would save no policy steps. Policy
    steps are counted as by `TrialIntervals.read_scores`.
    """
    may_end: list[list[tuple[int, float]]] = []
    for training in runs:
        first = training.evaluations(quantity)
        done = history(training.run.events).last("end")
        may_end.append(first[:-1] if done is not None and done["status"] in COMPLETE else first)
    return pace.read_scores(may_end)


def iqm(values: Sequence[float]) -> float:
    """Return the interquartile mean of values: their mean without the lowest and the highest quarter.

    For fewer than four values, it is the mean of all.
    """
    return float(statistics.iqm([np.array(values)]))
