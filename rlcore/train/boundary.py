"""Where training stands between two iterations: what the trainer says and its driver acts on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Boundary:
    """A moment between two iterations at which something is due.

    Attributes:
        env_steps: taken so far.
        due: of "checkpoint" and "evaluate", in that order; an evaluation is always of a checkpoint.
        done: training is over.
        reason: why, when done: "finished", "dry_run", "target_return" or "plateau".
    """

    env_steps: int
    due: tuple[str, ...]
    done: bool
    reason: str | None
