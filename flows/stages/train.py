"""train: advance a run to its next boundary, in the trainer process, which stays alive until the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flows.runs.listeners import tell
from flows.runs.milestones import note_baseline, note_end
from flows.runs.pruning import pruned
from flows.runs.trainer import standing, trainer_for
from flows.stages.checkpoint import checkpoint
from flows.stages.evaluate import evaluate
from rlcore.store.directory import RunDirectory
from rlcore.train.boundary import Boundary


def train(run: RunDirectory) -> Boundary:
    """Train a run that make-env prepared, new or half-trained, to the next boundary that the config sets."""
    return trainer_for(run).advance(lambda said: tell("progress", said))


def boundaries(run: RunDirectory, advance: Callable[[], Boundary] | None = None) -> Iterator[Boundary]:
    """Train from boundary to boundary until training is done, or pruned (`flows.runs.pruning`).

    What is due at one is the caller's to do before the next. The last one of a pruned training is not `done`.

    One at which the trainer died comes again: another goes on from the last checkpoint. `advance` trains to the next
    boundary; None = `train`.
    """
    note_baseline(run)
    while True:
        at = advance() if advance else train(run)
        yield at
        if at.done and standing(run) == at.policy_steps:
            break
        if not at.done and pruned(run, at):
            tell("stage", {"doing": f"pruned at {at.policy_steps:,} policy steps"})
            return
    note_end(run, at)
    if at.reason in ("target_return", "plateau"):
        tell("stage", {"doing": f"stopped early at {at.policy_steps:,} policy steps: early_stop, {at.reason}"})


def to_the_end(run: RunDirectory) -> Boundary:
    """Train to the end, with the checkpoints and evaluations that are due on the way; returns the last boundary."""
    at = None
    for at in boundaries(run):
        if "checkpoint" in at.due:
            checkpoint(run, at.policy_steps)
        if "evaluate" in at.due:
            evaluate(run, at.policy_steps)
    assert at is not None
    return at
