"""Checkpoint from which training resumes: selection, comparison with the current config, and safe reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.compiled.when_to_compile import decide
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError, first_line
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.fingerprint import learning_settings
from rlcore.train.resume_rules import refuse_other_learning, refuse_smaller_budget, warn_of_other_machine


@dataclass(frozen=True)
class ResumePoint:
    """Checkpoint from which training resumes, verified and loaded.

    Attributes:
        path: directory of the checkpoint.
        learning: state on which the next training step depends.
        bookkeeping: all other state, such as metrics and times.
        own: True if this run wrote the checkpoint; False if another run wrote it (`checkpoint.resume_from`).
    """

    path: Path
    learning: dict[str, Any]
    bookkeeping: dict[str, Any]
    own: bool

    @staticmethod
    def find(run: RunDirectory, resume_from: str | None) -> ResumePoint | None:
        """Find the checkpoint from which a run resumes, and load it.

        Args:
            run: run directory.
            resume_from: value of `checkpoint.resume_from` in the run's config.

        Returns:
            The newest undamaged checkpoint of the run. If the run has no checkpoint, the one at `resume_from`. If that
            is None, too, the result is None, and training starts from the beginning.

        Raises:
            UserError: If the run has checkpoints, but all are damaged.
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
        return ResumePoint.at(Path(resume_from)) if resume_from else None

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

    def check(self, now: Mapping[str, Any], config: RunConfig) -> None:
        """Compare the fingerprint `now` of the current process with that of the checkpoint.

        Raise a UserError if the resumed run would train differently. Log other differences, such as library versions,
        because results may then not be bit-identical.
        """
        stored = self.fingerprint
        refuse_other_learning(stored["learning"], now["learning"], config, self.path)
        warn_of_other_machine(stored["machine"], now["machine"])


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


def refuse_unfit(source: Path, config: RunConfig) -> None:
    """Raise a UserError if a new run cannot start from a checkpoint. The trainer repeats this check.

    Args:
        source: value of `checkpoint.resume_from`.
        config: config of the new run.

    Raises:
        UserError: If the checkpoint is missing or damaged, or its run was trained differently; describes the fix.
    """
    key = f"checkpoint.resume_from={source}"
    if RunDirectory(source).config.exists():
        newest = checkpoint.newest_good(RunDirectory(source).checkpoints)
        new = (
            f"to start a new run from it, set checkpoint.resume_from={newest}"
            if newest
            else "it has no valid checkpoint yet"
        )
        raise UserError(f"{key}: this is a run, not a checkpoint; to resume it, use `shepherd resume {source}`; {new}")
    if not (source / "manifest.json").is_file():
        others = ", ".join(str(path) for path in checkpoint.newest_first(source.parent))
        raise UserError(
            f"{key}: this is not the folder of a checkpoint; "
            + (f"choose one of {others}" if others else "give such a folder, for example runs/a/checkpoints/8192")
        )
    if wrong := checkpoint.damage(source):
        raise UserError(f"{key}: the checkpoint is damaged ({wrong}); choose another one")
    stored = ResumePoint.at(source).fingerprint
    # The tier of the new run is not known yet. It follows from the `env` group, which must be equal in both runs.
    now = learning_settings(config, stored["learning"]["tier"], decide(config, stored, lambda: None))
    refuse_other_learning(stored["learning"], now, config, source)
    refuse_smaller_budget(config, checkpoint.policy_steps(source), str(source))
