"""Facts that an agent must know of an environment: its observation keys and its action."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ArraySpec:
    """One observation key.

    Attributes:
        shape: without batch dimension; () for a Discrete observation.
        dtype: NumPy name as the environment gives it.
        n: number of values of a Discrete observation (encoded one-hot), None for a Box.
        start: smallest value of a Discrete observation.
    """

    shape: tuple[int, ...]
    dtype: str
    n: int | None = None
    start: int = 0

    @property
    def size(self) -> int:
        """Numbers this key contributes to the flat observation vector."""
        if self.n is not None:
            return self.n
        return math.prod(self.shape)


@dataclass(frozen=True)
class ActionSpec:
    """Action that the environment takes.

    Agents see continuous actions as float32 [B, A] and discrete ones as int64 [B, A] counted from 0 (one column a
    sub-action); `start` and `shape` restore the environment's own form.

    Attributes:
        space: "Box", "Discrete", "MultiDiscrete" or "MultiBinary".
        shape: the environment's shape without batch; () for Discrete.
        dtype: NumPy name as the environment wants it.
        nvec: choices of each sub-action; () for Box.
        start: smallest value of each sub-action; () for Box.
        low: lower bound of each element of a Box, flat; -inf where unbounded.
        high: upper bound, likewise.
    """

    space: str
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def continuous(self) -> bool:
        """True for a Box."""
        return self.space == "Box"

    @property
    def size(self) -> int:
        """A: number of columns of an action as the agent sees it."""
        return len(self.low) if self.continuous else len(self.nvec)


@dataclass(frozen=True)
class EnvSpec:
    """Facts that an agent must know of an environment: its id, observation keys and action."""

    id: str
    obs: dict[str, ArraySpec]
    action: ActionSpec

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them back. Infinite bounds become None."""
        data = asdict(self)
        for bound in ("low", "high"):
            data["action"][bound] = [v if abs(v) != float("inf") else None for v in data["action"][bound]]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EnvSpec:
        """Inverse of `to_json`."""
        obs = {k: ArraySpec(tuple(v["shape"]), v["dtype"], v["n"], v["start"]) for k, v in data["obs"].items()}
        a = data["action"]
        low = tuple(-float("inf") if v is None else float(v) for v in a["low"])
        high = tuple(float("inf") if v is None else float(v) for v in a["high"])
        action = ActionSpec(a["space"], tuple(a["shape"]), a["dtype"], tuple(a["nvec"]), tuple(a["start"]), low, high)
        return EnvSpec(data["id"], obs, action)
