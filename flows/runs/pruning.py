"""Ending a training at a boundary because something better is known to do with the time.

Who runs it judges it there (`judge_by`), or anybody leaves a note in its folder (`prune`), on the same machine or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from flows.runs.listeners import emit
from flows.runs.milestones import note_end
from flows.runs.trainer import live
from rlcore.store.directory import RunDirectory, write_text
from rlcore.train.boundary import Boundary

NOTE = ".prune"
Judge = Callable[[RunDirectory, Boundary], bool]

_judges: list[Judge] = []


@contextmanager
def judge_by(judge: Judge) -> Iterator[None]:
    """Have `judge(run, boundary)` say, of every boundary inside the `with` but the last, whether training ends there.

    It is called when what was due there is done.
    """
    _judges.append(judge)
    try:
        yield
    finally:
        _judges.remove(judge)


def is_trial() -> bool:
    """Return True inside `judge_by`: this process trains a trial, which nobody looks at by itself."""
    return bool(_judges)


def prune(run: RunDirectory, why: str) -> None:
    """Have a training end at its next boundary."""
    write_text(run.path / NOTE, f"{why}\n")


def end_early(run: RunDirectory, at: Boundary) -> bool:
    """End a training at this boundary, though it is not done, where a judge or a note says so; whether it has ended."""
    note = run.path / NOTE
    if not note.exists() and not any([judge(run, at) for judge in _judges]):
        return False
    note_end(run, replace(at, reason="pruned"))
    note.unlink(missing_ok=True)  # who resumes the run wants it to go on
    return True


def over(run: RunDirectory) -> bool:
    """Tell whether training is done, or pruned where its trainer stands; if so, its log says how.

    To be asked once at a boundary, when all that was due is done.
    """
    trainer = live(run)
    at = trainer.at if trainer is not None else None
    if at is None or not (at.done or end_early(run, at)):
        return False
    said = f"pruned at {at.policy_steps:,} policy steps"
    if at.done:
        note_end(run, at)
        said = f"stopped early at {at.policy_steps:,} policy steps: early_stop, {at.reason}"
    if not at.done or at.reason in ("target_return", "plateau"):
        emit("stage", {"doing": said})
    return True
