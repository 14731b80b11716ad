"""Pruning: ending a training early, at a point at which checkpoints and evaluations happen (a boundary).

The process that trains the run decides with `prune_by`. Any process on any machine can request pruning with `prune`,
which writes a file into the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from flows.runs.listeners import emit
from flows.runs.milestones import is_end_noted, note_end
from flows.runs.trainer import live
from rlcore.store.directory import RunDirectory, write_text
from rlcore.train.boundary import Boundary, status_of

NOTE = ".prune"
PruningRule = Callable[[RunDirectory, Boundary], bool]

_rules: list[PruningRule] = []


@contextmanager
def prune_by(rule: PruningRule) -> Iterator[None]:
    """Context manager in which a training ends early if `rule(run, boundary)` returns True.

    A boundary is a point at which checkpoints and evaluations happen. The rule is called at every boundary except the
    last, after the checkpoint and the evaluation that are due at the boundary.
    """
    _rules.append(rule)
    try:
        yield
    finally:
        _rules.remove(rule)


def is_trial() -> bool:
    """Return True inside `prune_by`, where this process trains a trial of a sweep."""
    return bool(_rules)


def prune(run: RunDirectory, why: str) -> None:
    """Request that a training ends at its next boundary, a point at which checkpoints and evaluations happen."""
    write_text(run.path / NOTE, f"{why}\n")


def end_early(run: RunDirectory, at: Boundary) -> bool:
    """End an unfinished training now if the rule of `prune_by` or a call of `prune` requests it.

    This is called at a boundary, a point at which checkpoints and evaluations happen. Return True if the training was
    ended.
    """
    note = run.path / NOTE
    if not note.exists() and not any([rule(run, at) for rule in _rules]):
        return False
    _end(run, replace(at, reason="pruned"))
    note.unlink(missing_ok=True)  # a resumed run continues
    return True


def over(run: RunDirectory) -> bool:
    """Prune the training if this was requested; return True if there is nothing more to train.

    The result is True if the training was pruned now, was stopped early, or has reached its budget; the end event of
    the run is then written. Call this function once at each boundary (point at which checkpoints and evaluations
    happen), after the checkpoint and the evaluation that are due at the boundary.
    """
    trainer = live(run)
    at = trainer.at if trainer is not None else None
    if at is None or not (at.done or end_early(run, at)):
        return False
    message = f"pruned at {at.policy_steps:,} policy steps"
    if at.done:
        _end(run, at)
        message = f"stopped early at {at.policy_steps:,} policy steps: {at.reason}"
    if not at.done or status_of(at.reason) == "stopped_early":
        emit("stage", {"doing": message})
    return True


def _end(run: RunDirectory, at: Boundary) -> None:
    """Call the callbacks of the run, and write its end event, unless it exists."""
    if (trainer := live(run)) is not None and not is_end_noted(run, at):
        trainer.end(status_of(at.reason), at.reason)
    note_end(run, at)
