"""Confirmation of a sweep: its best trial (the winner) and the default configuration are retrained and compared.

Both are trained on the same new seeds, because the values of the trials were used to choose the winner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flows.compare import statistics
from flows.compare.selection import FEWEST
from flows.report.sentences import between, number, sign
from flows.runs.change import change_run
from flows.runs.listeners import emit
from flows.sweeps.driving import Sweep
from flows.sweeps.jobs import FAULTS, Job
from flows.sweeps.plan import merge
from flows.sweeps.space import to_overrides
from flows.sweeps.study import CONFIRMATION
from flows.sweeps.trial import TrialRun, iqm, trainings
from flows.tasks import register_model
from rlcore.errors import RunError
from rlcore.store.directory import write_json

QUIET = ("env.capture_video=false",)  # default of the confirmation's runs


def confirm(sweep: Sweep) -> Iterator[Job]:
    """Yield the runs that compare the winner (best trial) of a sweep with the default configuration.

    Whenever a worker is free, the iterator yields a run, which the caller must start. The iterator ends when all runs
    have ended. If a run fails, its error is raised after the other runs have ended.
    """
    failures: list[RunError] = []
    wanted = sides(sweep)
    if wanted:
        emit("phase", {"doing": "confirmation", "total": 2 * len(wanted["winner"])})
    for pair in zip(*wanted.values(), strict=True):
        for training in pair:
            while not sweep.executor.free:
                _wait(sweep, failures)
            yield Job(f"{training.run_dir.parent.name}, {training.run_dir.name.replace('_', ' ')}", [training])
    while sweep.executor.busy:
        _wait(sweep, failures)
    if failures:
        raise type(failures[0])(f"sweep {sweep.folder.name}: the confirmation of the winner failed: {failures[0]}")


def sides(sweep: Sweep) -> dict[str, list[TrialRun]]:
    """Return the runs that compare a sweep's best trial with the default configuration.

    The result maps "winner" (best trial) and "default" to their runs, in the order of the seeds. It is empty if no
    trial was completed or `sweep.confirm_seeds` is 0.
    """
    best = sweep.study.best()
    if best is None or not sweep.config.confirm_seeds:
        return {}
    seeds = sweep.study.seeds(CONFIRMATION, sweep.config.confirm_seeds)
    base = merge(merge(QUIET, sweep.plan.base), ["model_manager.disabled=true"])
    values, name = to_overrides(sweep.study.params(best.number)), sweep.folder.name
    return {
        "winner": trainings(sweep.runs / f"winner_{best.number:04d}", merge(base, values), seeds, f"{name}-winner"),
        "default": trainings(sweep.runs / "default", base, seeds, f"{name}-default"),
    }


def verdict(sweep: Sweep) -> None:
    """Compare the winner (best trial) of a sweep with the default configuration and store the result.

    The values of the confirmation runs are compared. If the winner is better, its best confirmation run is registered
    as a model.
    """
    best, runs = sweep.study.best(), sides(sweep)
    if best is None or not runs:
        return
    values = {side: [training.value(sweep.config, sweep.pace) for training in its] for side, its in runs.items()}
    seeds = [int(training.run_dir.name.removeprefix("seed_")) for training in runs["winner"]]
    found = compare_with_default(values["winner"], values["default"])
    emit("stage", {"doing": f"confirmation: {found['words']}"})
    model = None
    if found["better"]:
        chosen = max(zip(values["winner"], runs["winner"], strict=True), key=lambda one: one[0])[1]
        change_run(chosen.run, ["model_manager.disabled=false"])
        model = register_model(chosen.run)
    write_json(
        sweep.folder.confirmed, {"trial": best.number, "seeds": seeds, "values": values, **found, "model": model}
    )


def compare_with_default(winner: Sequence[float], default: Sequence[float]) -> dict[str, Any]:
    """Compare a sweep's winner with the default configuration, by the interquartile means over their runs.

    Args:
        winner: values of the winner's runs, one per seed.
        default: values of the default configuration's runs, for the same seeds in the same order.

    Returns:
        A mapping with the keys

        - winner, default, difference: the two interquartile means and their difference.
        - low, high: 95 % bootstrap interval of the difference.
        - better: True if the interval is above 0.
        - words: the result in a sentence.

        With fewer than `FEWEST` seeds, `better`, `low` and `high` are None.
    """
    means = {"winner": iqm(winner), "default": iqm(default)}
    difference = means["winner"] - means["default"]
    measure = f"interquartile mean of the runs' values over {len(winner)} new seeds"
    returns = f"winner {number(means['winner'])}, default {number(means['default'])} ({measure})"
    if len(winner) < FEWEST:
        words = f"undecided: {returns}; a comparison needs at least {FEWEST} seeds (sweep.confirm_seeds)"
        return {"better": None, **means, "difference": difference, "low": None, "high": None, "words": words}
    low, high = interval(winner, default)
    verb = "better than" if low > 0 else "worse than" if high < 0 else "not better than"
    noise = "contains" if low <= 0 <= high else "does not contain"
    words = (
        f"the winner is {verb} the default configuration: {returns}, difference {sign(difference)}; its 95 % interval "
        f"{between(low, high)} {noise} 0"
    )
    return {"better": low > 0, **means, "difference": difference, "low": low, "high": high, "words": words}


def interval(winner: Sequence[float], default: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the difference of two interquartile means.

    The i-th values of `winner` and `default` have the same seed and are resampled together.
    """
    sides, rng = ([np.array(winner)], [np.array(default)]), np.random.default_rng(0)
    found = statistics.difference(*sides, statistics.iqm, rng, paired=True)
    return float(found.low), float(found.high)


def _wait(sweep: Sweep, failures: list[RunError]) -> None:
    job, end = sweep.executor.wait()
    if end.state in ("failed", "unfinished"):
        failures.append(FAULTS.get(end.fault, RunError)(f"{job.label}: {end.sentence}"))
