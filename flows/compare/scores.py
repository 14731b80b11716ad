"""Worth of a run: its return at the end, the same between random and solved, and when it reached a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from flows.compare.records import Record
from flows.compare.selection import Selection
from rlcore.errors import UserError
from rlcore.store.series import Line

LAST = 3  # evaluations, or a tenth of them where that is more
FINAL = "greedy mean return of the final evaluation"
LATE = f"mean of the last evaluations while training (a tenth of them, {LAST} at least; greedy)"
LATE_TRAINING = f"mean return of the last windows of training (a tenth of them, {LAST} at least; sampled actions)"


@dataclass(frozen=True)
class Measure:
    """Quantity that is measured, the same of every run.

    Attributes:
        words: what the value of a run is.
        value: of a run.
        curve: what of a run is drawn along training.
        curve_words: its name.
    """

    words: str
    value: Callable[[Record], float]
    curve: Callable[[Record], Line]
    curve_words: str


@dataclass(frozen=True)
class Scale:
    """Returns of an environment as scores: 0 at `low`, 1 at `high`; why these, in words."""

    low: float
    high: float
    words: str
    solved: float | None  # the return at which the environment's registration calls it solved

    def score(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns [...] as scores [...]."""
        return (returns - self.low) / (self.high - self.low)

    def back(self, score: float) -> float:
        """A score as a return."""
        return self.low + score * (self.high - self.low)


def measure(selection: Selection) -> tuple[Measure, list[str]]:
    """Choose what every run that counts can be measured by, and what a reader must know of the choice.

    The final evaluation where all runs have one: it is of many episodes on seeds of its own. It judges the checkpoint
    that was best while training, the last evaluations the latest one, so that the two are never mixed. A `UserError`
    names a run that has no return at all.
    """
    runs = [record for task in selection.tasks for record in selection.records(task)]
    judged = all(len(record.evaluations) >= 2 for record in runs)
    curve: Callable[[Record], Line] = (lambda r: r.evaluations) if judged else (lambda r: r.training)
    name = "greedy evaluation" if judged else "training, sampled actions"
    notes = (
        [] if judged else ["Not every run was evaluated twice while training: curves are of training's own episodes."]
    )
    without = sum(record.final is None for record in runs)
    if not without:
        return Measure(FINAL, lambda r: float(r.final or 0.0), curve, name), notes
    if mute := next((record for record in runs if not curve(record)), None):
        raise UserError(f"{mute.place}: it ended without an evaluation or a return in its log; take it out of its side")
    notes.append(
        f"{without} of {len(runs)} runs have no final evaluation, so none is used: {LATE if judged else LATE_TRAINING}."
    )
    return Measure(LATE if judged else LATE_TRAINING, lambda r: late(curve(r)), curve, name), notes


def late(line: Line) -> float:
    """The mean of a line's last tenth, of `LAST` points at least."""
    return float(np.mean([value for _, value in line[-max(LAST, math.ceil(len(line) / 10)) :]]))


def scale(selection: Selection, task: str, found: Measure) -> Scale:
    """The scale of an environment: from the random policy to what Gymnasium calls solved, else to the best run here."""
    runs = list(selection.records(task))
    values = [found.value(run) for run in runs]
    random = [run.baseline for run in runs if run.baseline is not None]
    low = float(np.mean(random)) if random else min(values)
    solved = _find_solved_return(runs[0].config["env.id"])
    high = max(values) if solved is None or solved <= low else solved
    high = high if high > low else low + 1.0  # nobody does better than random: distances in the unit of the return
    words = f"0 is {'the random policy' if random else 'the worst run here'} ({low:.4g}), "
    words += f"1 is {'solved, by Gymnasium’s own threshold' if high == solved else 'the best run here'} ({high:.4g})"
    return Scale(low, high, words, solved if high == solved else None)


def find_crossing(line: Line, threshold: float) -> int | None:
    """Policy steps at the first point at or above a threshold; None where none is."""
    return next((steps for steps, value in line if value >= threshold), None)


def _find_solved_return(env_id: str) -> float | None:
    try:
        return gymnasium.spec(env_id).reward_threshold
    except gymnasium.error.Error:  # of a plugin that is not named now
        return None
