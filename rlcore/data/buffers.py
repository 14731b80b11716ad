"""Where steps wait for the learner."""

from __future__ import annotations

from collections.abc import Iterator

from rlcore.types import Batch, State, Steps


class Rollout:
    """On-policy storage: hands every rollout out once, whole, in the order of time."""

    def __init__(self) -> None:
        self.pending: tuple[Steps, Steps] | None = None

    def extend(self, steps: Steps, last: Steps) -> None:
        """Take a rollout [T, B, ...] and the arrival [B, ...] after it."""
        self.pending = (steps, last)

    def batches(self, env_steps: int) -> Iterator[Batch]:
        """The pending rollout, collected from `env_steps` on."""
        if self.pending is not None:
            steps, last = self.pending
            self.pending = None
            yield Batch(steps, last, env_steps)

    def state_dict(self) -> State:
        """Nothing: between iterations no rollout waits."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Forget a waiting rollout."""
        self.pending = None
