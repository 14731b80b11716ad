"""The checkpoint that a session goes on from: found, held against the run as it is now, read with care."""

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
    """A verified checkpoint and what it holds.

    Attributes:
        path: its directory.
        learning: what the next step depends on.
        bookkeeping: everything else.
        own: it is of this run, and not one that the config names.
    """

    path: Path
    learning: dict[str, Any]
    bookkeeping: dict[str, Any]
    own: bool

    @staticmethod
    def find(run: RunDirectory, resume_from: str | None) -> ResumePoint | None:
        """The newest good checkpoint of a run, else the one that its config names, else None.

        Args:
            run: whose.
            resume_from: what the config names.

        Returns:
            What the session goes on from.

        Raises:
            UserError: there are checkpoints and none is good: a run does not begin anew behind its user's back.
        """
        newest = checkpoint.load_newest(run.checkpoints, with_chunks=True)
        if newest is not None:
            return ResumePoint(*newest, own=True)
        there = [path.name for path in checkpoint.newest_first(run.checkpoints)]
        if there:
            raise UserError(
                f"{run.path}: every checkpoint is damaged ({', '.join(there)}; {run.log} says how); "
                "remove its folder `checkpoints` to train from the beginning"
            )
        return ResumePoint.at(Path(resume_from)) if resume_from else None

    @staticmethod
    def at(path: Path) -> ResumePoint:
        """A checkpoint of another run; `UserError` where it is damaged."""
        return ResumePoint(path, *checkpoint.load(path), own=False)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Fingerprint of the code and machine that a run was trained with."""
        with self.reading():
            return {half: dict(self.bookkeeping["fingerprint"][half]) for half in ("learning", "machine")}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn every way in which a state can be another than this run's into a `UserError` that names the files."""
        with reading_state(self.path):
            yield

    def check(self, now: Mapping[str, Any], config: RunConfig) -> None:
        """Refuse to go on with what would learn something else; say what may change the bits."""
        before = self.fingerprint
        refuse_other_learning(before["learning"], now["learning"], config, self.path)
        warn_of_other_machine(before["machine"], now["machine"])


@contextmanager
def reading_state(path: Path) -> Iterator[None]:
    """Turn every way in which a checkpoint's state can be another than a training's into a `UserError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"checkpoint {path}: learning/state.json or bookkeeping/state.json holds no state of this run "
            f"({type(error).__name__}: {first_line(error)[:200]})"
        ) from error


def refuse_unfit(source: Path, config: RunConfig) -> None:
    """Hold the checkpoint that a new run is to go on from against what it would learn, as its session will.

    Args:
        source: what `checkpoint.resume_from` names.
        config: of the new run.

    Raises:
        UserError: it is no good checkpoint, or one of a run that learns something else; says what to type instead.
    """
    key = f"checkpoint.resume_from={source}"
    if RunDirectory(source).config.exists():
        newest = checkpoint.newest_good(RunDirectory(source).checkpoints)
        into = f"another run from it: checkpoint.resume_from={newest}" if newest else "it has no good checkpoint yet"
        raise UserError(f"{key}: this is a run, not a checkpoint; to go on with it: shepherd resume {source}; {into}")
    if not (source / "manifest.json").is_file():
        there = ", ".join(str(path) for path in checkpoint.newest_first(source.parent))
        raise UserError(
            f"{key}: no checkpoint there; "
            + (f"choose one of {there}" if there else "give its folder, as runs/a/checkpoints/8192")
        )
    if wrong := checkpoint.damage(source):
        raise UserError(f"{key}: no good checkpoint ({wrong})")
    before = ResumePoint.at(source).fingerprint
    # The environment has not been measured; its tier follows from `env`, in which the two must not differ anyway.
    now = learning_settings(config, before["learning"]["tier"], decide(config, before, lambda: None))
    refuse_other_learning(before["learning"], now, config, source)
    refuse_smaller_budget(config, checkpoint.policy_steps(source), str(source))
