"""On-policy buffer."""

from __future__ import annotations

from collections.abc import Iterator

from rlcore.protocols import Buffer
from rlcore.types import Batch, State, Trajectory


class Rollout(Buffer):
    """On-policy buffer: it yields each rollout once, with all rows in time order."""

    def __init__(self) -> None:
        self.pending: tuple[Trajectory, Trajectory] | None = None

    def extend(self, steps: Trajectory, last: Trajectory) -> None:
        """Store a rollout [T, B, ...] and the time step [B, ...] after it."""
        self.pending = (steps, last)

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """Yield the stored rollout as one batch, if there is one, and remove it.

        `policy_steps` is the number of policy steps, over all ranks, that were taken before this rollout.
        """
        if self.pending is not None:
            steps, last = self.pending
            self.pending = None
            yield Batch(steps, last, policy_steps)

    def state_dict(self) -> State:
        """Return {}, because the buffer is empty when a checkpoint is written."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Discard the stored rollout."""
        self.pending = None
