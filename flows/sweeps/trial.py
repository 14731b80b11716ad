"""A trial: the trainings of one set of values, one for each seed, and what they came to, read from their event logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from flows.compare import statistics
from flows.runs.milestones import is_over
from flows.sweeps.pace import Pace
from flows.sweeps.plan import SweepConfig, merge
from rlcore.config.groups import RunConfig
from rlcore.config.learning_half import learning_half
from rlcore.config.values import plain
from rlcore.errors import RunError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.history import history
from rlcore.train.fingerprint import differences

# Set for every trial, unless the user has: what only costs time where nobody looks at a single run.
LEAN = (
    "env.capture_video=false",
    "evaluation.baseline_episodes=10",
    "metric.logger.name=mlflow",
    "algo.run_test=false",
)


@dataclass(frozen=True)
class TrialRun:
    """One run of a sweep or group: the folder where it lies, or will, and the overrides that make it."""

    run_dir: Path
    overrides: tuple[str, ...]

    @property
    def run(self) -> RunDirectory:
        """Run directory of the training."""
        return RunDirectory(self.run_dir)

    @property
    def state(self) -> str:
        """Progress of the trial: "new", "begun", "pruned", or "over"; of one that is over the summary is written."""
        if not self.run.config.exists():
            return "new"
        status = self.run.read_summary().get("status")
        return "pruned" if status == "pruned" else "over" if is_over(self.run) else "begun"

    @property
    def policy_steps(self) -> int:
        """Taken so far, as far as its log tells."""
        return history(self.run.events).policy_steps

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Policy steps and mean greedy return of the evaluations while training, in order."""
        return [(event["policy_steps"], event["greedy"]["mean"]) for event in history(self.run.events).evaluations]

    @property
    def scores(self) -> list[float]:
        """Mean greedy returns of the evaluations while training, in order."""
        return [score for _, score in self.evaluations]

    def value(self, config: SweepConfig, pace: Pace) -> float:
        """Value of a trial, by `sweep.objective`; a `RunError` where its log does not say."""
        if config.objective == "final":
            final = history(self.run.events).last("evaluation", final=True)
            scores = [final["greedy"]["mean"]] if final else []
        else:
            scores = self.scores if config.objective == "all" else pace.recent(self.evaluations, config.last)
        if not scores:
            raise RunError(f"{self.run_dir}: no evaluation, so it has no value")
        return fmean(scores)


def otherwise(run: RunDirectory, config: RunConfig, judged: bool = False) -> tuple[str, Any, Any] | None:
    """A key in which a run that is there learned with another value than a config has: key, its value, the config's.

    `judged`: also one that decides how it was judged, or where it ended.
    """

    def deciding(of: RunConfig, init_from: str | None) -> dict[str, Any]:
        half = learning_half(of) | {"init_from": init_from}
        return half | ({part: plain(getattr(of, part)) for part in ("evaluation", "early_stop")} if judged else {})

    there = config_of(run)
    given = run.read_identity().get("init_from", {}).get("given", there.init_from)  # an alias is kept as a folder
    found = differences(deciding(there, given), deciding(config, config.init_from))
    return next(found, None)


def trainings(folder: Path, base: Sequence[str], seeds: Sequence[int], group: str) -> list[TrialRun]:
    """The runs of a folder, one for each seed, which they are called by."""
    found = []
    for seed in seeds:
        place = folder / f"seed_{seed}"
        ours = [f"seed={seed}", f"group={group}", f"run_dir={_quote(place)}"]
        found.append(TrialRun(place, tuple(merge(base, ours))))
    return found


def lean(base: Sequence[str], config: SweepConfig) -> list[str]:
    """Overrides of a trial's runs: a model that nobody has confirmed is not registered, and nobody looks at it."""
    defaults = [line for line in LEAN if not (config.objective == "final" and line.startswith("algo.run_test"))]
    return merge(merge(defaults, base), ["model_manager.disabled=true"])


def read_reports(runs: Sequence[TrialRun], pace: Pace) -> Iterator[tuple[int, float]]:
    """Policy steps and mean return of the evaluations that a pruner may end a trial at, over all of its runs.

    The last one of a training that is done is not among them: there is nothing left to save.
    """
    may_end: list[list[tuple[int, float]]] = []
    for training in runs:
        found = training.evaluations
        done = history(training.run.events).last("end")
        may_end.append(found[:-1] if done is not None and done["status"] in COMPLETE else found)
    return pace.read_scores(may_end)


def iqm(values: Sequence[float]) -> float:
    """The interquartile mean: without the lowest and the highest quarter; of fewer than four the mean."""
    return float(statistics.iqm([np.array(values)]))


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", r"\'") + "'"
