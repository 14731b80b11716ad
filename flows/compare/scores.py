"""Numbers that describe a run: its return after training, its normalized score, and its policy steps to a threshold."""

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
from rlcore.store.series import EPISODE_RETURN, Line, Quantity

LAST = 3  # number of evaluations that are averaged; if a tenth of all evaluations is more, that tenth is averaged
FINAL = "greedy mean {} of the final evaluation"
LATE = f"mean {{}} of the last greedy evaluations during training (the last tenth, at least {LAST})"
LATE_TRAINING = f"mean {{}} of the last logged training episodes (the last tenth of points, at least {LAST})"


@dataclass(frozen=True)
class Measure:
    """Definition of the value and the learning curve of a run, for the comparison of runs.

    All runs of a comparison use the same definition.

    Attributes:
        words: description of the value, for the report.
        value: function that returns the value of a run.
        curve: function that returns the learning curve of a run.
        curve_words: description of the curve, for the report.
        quantity: the quantity, such as the return.
    """

    words: str
    value: Callable[[Record], float]
    curve: Callable[[Record], Line]
    curve_words: str
    quantity: Quantity = EPISODE_RETURN


@dataclass(frozen=True)
class Scale:
    """Conversion of an environment's returns to normalized scores.

    Attributes:
        low: return that has the score 0.
        high: return that has the score 1.
        words: description of `low` and `high`, for the report.
        solved: return at which the environment is solved, if it defines the score 1; None if it does not.
    """

    low: float
    high: float
    words: str
    solved: float | None  # `reward_threshold` of the environment in Gymnasium's registry

    def score(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert returns [...] to scores [...]."""
        return (returns - self.low) / (self.high - self.low)

    def back(self, score: float) -> float:
        """Convert a score to a return."""
        return self.low + score * (self.high - self.low)


def measure(selection: Selection) -> tuple[Measure, list[str]]:
    """Choose the value by which runs are compared; return its definition, and remarks for the reader of the report.

    If all runs have a final evaluation, the value is its mean return. The final evaluation is preferred because it has
    many episodes, on seeds that training and other evaluations do not use. Otherwise the value of all runs is the mean
    of their last values logged during training. The two kinds of values are never mixed in one comparison: the final
    evaluation uses the best checkpoint, but the last logged values belong to the latest policy. Raises UserError if a
    run has no returns.
    """
    runs = [record for task in selection.tasks for record in selection.records(task)]
    evaluated = all(len(record.evaluations) >= 2 for record in runs)
    curve: Callable[[Record], Line] = (lambda r: r.evaluations) if evaluated else (lambda r: r.training)
    quantity = runs[0].quantity
    what = quantity.words
    of = "" if quantity.name is None else f"{what} of "  # the value of an evaluation is its mean return
    name = f"{of}greedy evaluation" if evaluated else f"{what} of training episodes with sampled actions"
    notes = (
        [] if evaluated else [f"Some runs have fewer than two evaluations, so curves show {what} of training episodes."]
    )
    without = sum(record.final is None for record in runs)
    if not without:
        return Measure(FINAL.format(what), lambda r: float(r.final or 0.0), curve, name, quantity), notes
    if mute := next((record for record in runs if not curve(record)), None):
        if quantity.name is not None:
            raise UserError(
                f"--metric {what}: {mute.place} has no value of {what} in its log; train with env.info_keys=[{what}] "
                "or with a callback that logs it, or compare returns by leaving --metric out"
            )
        raise UserError(
            f"{mute.place}: this run has no evaluation and no return in its log, so it cannot be compared; move it out "
            "of its group or folder"
        )
    words = (LATE if evaluated else LATE_TRAINING).format(what)
    notes.append(
        f"{without} of {len(runs)} runs have no final evaluation{f' with {what}' if quantity.name else ''}, so this "
        f"value is used for all runs: {words}."
    )
    return Measure(words, lambda r: late(curve(r)), curve, name, quantity), notes


def late(line: Line) -> float:
    """Return the mean of the last 10 % of a metric's logged values, or of the last `LAST` values if these are more."""
    return float(np.mean([value for _, value in line[-max(LAST, math.ceil(len(line) / 10)) :]]))


def scale(selection: Selection, task: str, measure: Measure) -> Scale:
    """Return the conversion of an environment's returns to normalized scores.

    The score 0 is the mean return of the random policy, or the return of the worst compared run if the random policy
    was not evaluated. The score 1 is the `reward_threshold` of the environment in Gymnasium's registry, or the return
    of the best compared run if there is no `reward_threshold`.
    """
    runs = list(selection.records(task))
    values = [measure.value(run) for run in runs]
    random = [run.baseline for run in runs if run.baseline is not None]
    low = float(np.mean(random)) if random else min(values)
    solved = None if measure.quantity.name else _find_solved_return(runs[0].config["env.id"])
    high = max(values) if solved is None or solved <= low else solved
    high = high if high > low else low + 1.0  # no run is better than random: scores are differences of returns
    words = f"score 0 is {'the random policy' if random else 'the worst run here'} ({low:.4g}), "
    words += f"score 1 is {'Gymnasium’s threshold for solved' if high == solved else 'the best run here'} ({high:.4g})"
    return Scale(low, high, words, solved if high == solved else None)


def find_crossing(line: Line, threshold: float) -> int | None:
    """Return the number of policy steps at which a metric first reached a threshold; None if it never did.

    `line` contains pairs of policy steps and logged value.
    """
    return next((steps for steps, value in line if value >= threshold), None)


def _find_solved_return(env_id: str) -> float | None:
    try:
        return gymnasium.spec(env_id).reward_threshold
    except gymnasium.error.Error:  # e.g. an environment of a plugin that is not loaded
        return None
