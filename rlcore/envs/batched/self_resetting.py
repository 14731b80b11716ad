"""Vectorized environment of a batched environment that resets its copies itself and whose state cannot be saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.errors import RunError
from rlcore.types import State, TimeStep


class SelfResettingVectorEnv(BatchedVectorEnv):
    """Vectorized environment of a batched environment with the tier "boundary" (`BatchedEnv.tier`).

    All copies are reset together, with new random numbers, at the start and after every scheduled checkpoint, which
    truncates unfinished episodes. Between two such resets, the batched environment resets ended copies itself. The
    arguments are those of `BatchedVectorEnv`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.env.state, self.capturable = {}, False
        self._all_ended = False  # True after `boundary`: the next step resets all copies

    def reset(self) -> TimeStep:
        """Start a new episode in every copy."""
        self._all_ended = False
        return super().reset()

    def step(self, action: Tensor) -> TimeStep:
        """Take actions [B, *shape] in the environment's format; after `boundary`, reset all copies instead."""
        return self.reset() if self._all_ended else super().step(action)

    def _truncated(self, terminated: Tensor, own: Tensor | None = None) -> Tensor:
        assert own is not None
        return own

    def _reset_ended(self, opens: Tensor, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return obs  # the step of the batched environment has already reset these copies

    def boundary(self) -> TimeStep | None:
        """Truncate the unfinished episodes, so that the state can be saved; the next step resets all copies.

        Returns:
            The last time step, in which `truncated` is True for the unfinished episodes; None before the first reset.
        """
        if self.last is None or self._all_ended:
            return self.last
        unfinished = ~self._ended
        length = self._episodes.length
        self._unread.append((unfinished & (length > 0), self._episodes.ret, length))
        self.last = replace(self.last, truncated=self.last.truncated | unfinished)
        self._ended, self._all_ended = torch.ones_like(unfinished), True
        return self.last

    def state_dict(self) -> State:
        """Return everything that the next step depends on; raise RunError if an episode is unfinished."""
        if self.last is not None and not self._all_ended:
            raise RunError(
                'the environments have the tier "boundary", so their state cannot be saved during an episode; '
                "call boundary() before state_dict()"
            )
        return super().state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore a state that `state_dict` returned; raise RunError if it is of another number of copies."""
        super().load_state_dict(state)
        self._all_ended = bool(state["started"])
