"""Trainer processes that this process has started, at most one for each run."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.process.signals import is_interrupted
from flows.runs.trainer_process import TrainerProcess
from rlcore.store.directory import RunDirectory

_live: dict[Path, TrainerProcess] = {}


def current_step(run: RunDirectory) -> int:
    """Return the current policy step of a run: that of its trainer process, or else of its newest checkpoint, or 0."""
    trainer = _live.get(run.path.absolute())
    if trainer is not None and trainer.ready:
        return trainer.policy_steps
    from rlcore.store import checkpoint  # imports numpy, which a process that only drives a trainer does not need

    return next(map(checkpoint.policy_steps, checkpoint.newest_first(run.checkpoints)), 0)


def resumes(run: RunDirectory) -> str:
    """Return a phrase for messages that names the checkpoint from which a run would resume.

    Examples: "from its checkpoint at 8,192 policy steps", "from the beginning".
    """
    from rlcore.store import checkpoint  # imports numpy

    newest = checkpoint.newest_good(run.checkpoints)
    return (
        f"from its checkpoint at {checkpoint.policy_steps(newest):,} policy steps" if newest else "from the beginning"
    )


def trainer_for(run: RunDirectory) -> TrainerProcess:
    """Return the trainer process that this process has started for a run.

    If there is none, or if it has died, a trainer process is started from the last checkpoint of the run.
    """
    trainer = expect_trainer(run)
    trainer.begin()
    return trainer


def expect_trainer(run: RunDirectory) -> TrainerProcess:
    """Return the trainer process that this process has started for a run, before or after its `begin`.

    If there is none, or if it has died, a trainer process is started, but `begin` is not called. A call before training
    saves time, because the imports of a trainer take seconds.
    """
    trainer = _live.get(run.path.absolute())
    if trainer is not None and trainer.process.poll() is not None:
        release(run)
    if run.path.absolute() not in _live:
        _live[run.path.absolute()] = TrainerProcess(run, begin=False)
    return _live[run.path.absolute()]


def live(run: RunDirectory) -> TrainerProcess | None:
    """Return the trainer process that this process has started for a run.

    None if there is no such process, if it is not alive, or if it is not ready to train yet.
    """
    trainer = _live.get(run.path.absolute())
    return trainer if trainer is not None and trainer.ready and trainer.process.poll() is None else None


def has_trainer(run: RunDirectory) -> bool:
    """Return True if this process has started a trainer process for a run and has not released it; it may be dead."""
    return run.path.absolute() in _live


def release(run: RunDirectory, *, interrupt: bool = False) -> None:
    """End the trainer process of a run, if there is one. If `interrupt` is True, it first writes a checkpoint."""
    trainer = _live.pop(run.path.absolute(), None)
    if trainer is not None:
        trainer.interrupt() if interrupt else trainer.stop()


@contextmanager
def release_after(run: RunDirectory) -> Iterator[None]:
    """Context manager that ends the trainer process of a run when the `with` block ends.

    If a signal or Prefect has interrupted the block, the trainer process first writes a checkpoint.
    """
    try:
        yield
    except BaseException as error:
        release(run, interrupt=not isinstance(error, Exception) or is_interrupted())
        raise
    finally:
        release(run)


@atexit.register
def _release_all() -> None:
    for path in list(_live):
        release(RunDirectory(path))
