"""Estimate of the work of a sweep, printed before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import median

from flows.report.sentences import duration
from flows.sweeps.pace import TrialIntervals
from flows.sweeps.plan import SweepPlan
from rlcore.config.groups import RunConfig
from rlcore.store.directory import RunDirectory

SEEN = 20  # maximal number of runs from which the speed is estimated


def amount(plan: SweepPlan, pace: TrialIntervals, ended: int = 0, speed: float | None = None) -> str:
    """Describe the work of a sweep in a sentence: trials, confirmation runs, policy steps and estimated time.

    Confirmation runs compare the best trial with the default configuration, after the trials.

    Args:
        plan: plan of the sweep.
        pace: evaluation intervals; only `pace.budget` is used, the largest length of a run in policy steps.
        ended: number of trials that have already ended.
        speed: expected policy steps per second of one run; None if unknown.

    Returns:
        The sentence, without a full stop.
    """
    settings = plan.config
    trials, fresh = max(0, plan.size - ended), 2 * settings.confirm_seeds
    runs = trials * settings.seeds + fresh
    each = f" on {settings.seeds} seeds each" if settings.seeds > 1 else ""
    parts = [f"{trials} {'trial' if trials == 1 else 'trials'}{each}"]
    parts += [f"{fresh} confirmation runs"] if fresh else []
    which = f"{runs} {'run' if runs == 1 else 'runs'} of {pace.budget:,} policy steps"
    amount = f"{' + '.join(parts)}: {which}, at most {runs * pace.budget:,} policy steps in total"
    if not speed:
        return amount
    seconds = runs * pace.budget / speed / settings.workers
    unit = "h:min:s" if round(seconds) >= 3600 else "min:s"
    at_once = f"{settings.workers} {'run' if settings.workers == 1 else 'runs'} at a time"
    return (
        f"{amount}; estimated training time {duration(seconds)} ({unit}) with {at_once} at {speed:,.0f} policy steps/s "
        "each (median of earlier runs), not including evaluations and startup"
    )


def speed_of(config: RunConfig, trials: Path) -> float | None:
    """Return the median speed of earlier runs in policy steps per second, or None if there are no such runs.

    Args:
        config: config of a trial; it names the algorithm and the environment.
        trials: folder with the runs of the sweep. If it is empty, other runs of the same algorithm on the same
            environment are used.

    Returns:
        Policy steps per second, or None.
    """
    own = RunDirectory.below(trials)
    others = RunDirectory.below(Path(config.log_root) / config.algo.name / config.env.id)
    return _middle(list(islice(own, SEEN)) or islice(others, SEEN))


def _middle(runs: Iterable[RunDirectory]) -> float | None:
    speeds = [speed for run in runs if (speed := run.read_summary().get("policy_steps_per_s"))]
    return median(speeds) if speeds else None
