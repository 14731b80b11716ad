"""Amount of work that a sweep is, told before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from statistics import median

from flows.report.sentences import duration
from flows.sweeps.pace import Pace
from flows.sweeps.plan import SweepPlan
from rlcore.config.groups import RunConfig
from rlcore.store.directory import RunDirectory

SEEN = 20  # runs whose speed is looked at


def amount(plan: SweepPlan, pace: Pace, ended: int = 0, speed: float | None = None) -> str:
    """The work of a sweep in a sentence: trials × budget, the runs of the confirmation, and about how long they take.

    Args:
        plan: of the sweep.
        pace: its budget is that of each run; of several the largest.
        ended: trials that are over already.
        speed: policy steps a second of one run; None where it is not known.

    Returns:
        The sentence, without a full stop.
    """
    settings = plan.config
    trials, fresh = max(0, plan.size - ended), 2 * settings.confirm_seeds
    runs = trials * settings.seeds + fresh
    each = f" on {settings.seeds} seeds each" if settings.seeds > 1 else ""
    parts = [f"{trials} {'trial' if trials == 1 else 'trials'}{each}", *([f"{fresh} to confirm"] if fresh else [])]
    which = f"{runs} {'run' if runs == 1 else 'runs'} of {pace.budget:,} policy steps"
    said = f"{' + '.join(parts)}: {which}, at most {runs * pace.budget:,} in all"
    if not speed:
        return said
    seconds = runs * pace.budget / speed / settings.workers
    unit = "h:min:s" if round(seconds) >= 3600 else "min:s"
    at_once = f"{settings.workers} {'run' if settings.workers == 1 else 'runs'} at a time"
    return (
        f"{said}; training alone takes about {duration(seconds)} ({unit}) by the clock, with {at_once} of "
        f"{speed:,.0f} policy steps/s each (median of earlier runs); evaluations and starts come on top"
    )


def speed_of(config: RunConfig, trials: Path) -> float | None:
    """Policy steps a second, in the middle, of runs of this algorithm on this environment; None without any."""
    own = RunDirectory.below(trials)
    others = RunDirectory.below(Path(config.log_root) / config.algo.name / config.env.id)
    return _middle(list(islice(own, SEEN)) or islice(others, SEEN))


def _middle(runs: Iterable[RunDirectory]) -> float | None:
    speeds = [speed for run in runs if (speed := run.read_summary().get("policy_steps_per_s"))]
    return median(speeds) if speeds else None
