"""Checkpoint from which training resumes: how it is found, verified and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.errors import UserError, first_line
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory


@dataclass(frozen=True)
class ResumePoint:
    """Checkpoint from which training resumes, verified and loaded.

    Attributes:
        path: directory of the checkpoint.
        learning: state on which the next training step depends.
        bookkeeping: all other state, such as metrics and times.
        own: True if this run wrote the checkpoint; False if another run wrote it (`checkpoint.resume_from` or
            `checkpoint.extend_from`).
    """

    path: Path
    learning: dict[str, Any]
    bookkeeping: dict[str, Any]
    own: bool

    @staticmethod
    def find(run: RunDirectory, start: str | None) -> ResumePoint | None:
        """Find the checkpoint from which a run resumes, and load it.

        Args:
            run: run directory.
            start: checkpoint of another run from which the run starts: the value of `checkpoint.resume_from` or
                `checkpoint.extend_from` in the run's config.

        Returns:
            The newest undamaged checkpoint of the run. If the run has no checkpoint, the one at `start`. If that is
            None, too, the result is None, and training starts from the beginning.

        Raises:
            UserError: If the run has checkpoints, but all are damaged, or if `start` does not exist any more.
        """
        newest = checkpoint.load_newest(run.checkpoints, with_chunks=True)
        if newest is not None:
            return ResumePoint(*newest, own=True)
        names = [path.name for path in checkpoint.newest_first(run.checkpoints)]
        if names:
            raise UserError(
                f"{run.path}: every checkpoint is damaged ({', '.join(names)}; see {run.log} for details); "
                "remove its folder `checkpoints` to train from the beginning"
            )
        if start is None:
            return None
        if not Path(start).exists():
            raise UserError(
                f"{run.path}: has no checkpoint of its own yet and starts from {start}, which does not exist any more; "
                "restore that folder from a copy"
            )
        return ResumePoint.at(Path(start))

    @staticmethod
    def at(path: Path) -> ResumePoint:
        """Load a checkpoint of another run; raise a UserError if it is damaged."""
        return ResumePoint(path, *checkpoint.load(path), own=False)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Fingerprint of the run that wrote the checkpoint, {learning, machine} (`rlcore.train.fingerprint`)."""
        with self.reading():
            return {half: dict(self.bookkeeping["fingerprint"][half]) for half in ("learning", "machine")}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context manager that raises a UserError naming the files if a state lacks the expected keys or types."""
        with reading_state(self.path):
            yield


@contextmanager
def reading_state(path: Path) -> Iterator[None]:
    """Context manager that raises a UserError naming the files if a state lacks the expected keys or types."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"checkpoint {path}: learning/state.json or bookkeeping/state.json does not contain a state of this run "
            f"({type(error).__name__}: {first_line(error)[:200]})"
        ) from error
