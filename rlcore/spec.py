"""Facts that an agent must know of an environment: its observation keys and its action."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

IMAGE_SIDE = 8  # pixels; what is smaller does not look like an image
IMAGES_ARE = "an image is a Box of uint8, or of real numbers with the bounds 0 and 1"
ACTION = "past_action"  # key of an agent's own actions before, in its history


@dataclass(frozen=True)
class Window:
    """The last `frames` rows of a key that an agent sees at once, every `dilation`-th, the newest always."""

    frames: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Rows before the newest one that it looks at."""
        return (self.frames - 1) * self.dilation


@dataclass(frozen=True)
class Binding:
    """A mask of actions, and what it is about.

    Attributes:
        part: the sub-action whose choices it has an entry for.
        by: a sub-action before it; the mask counts only where this one takes one of `when`. None: always.
        when: choices of that sub-action, counted from 0.
    """

    part: int
    by: int | None = None
    when: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArraySpec:
    """One observation key.

    Attributes:
        shape: without batch dimension; () for a Discrete observation.
        dtype: NumPy name as the environment gives it.
        n: number of values of a Discrete observation (encoded one-hot), None for a Box.
        start: smallest value of a Discrete observation.
        kind: "vector", "image", "mask" (of actions) or "goal"; algorithms say which of them they read.
        window: what of its past belongs to it, as `env.frame_stack` asks for images; None = nothing. A frame has
            `shape`, and an agent is shown [frames, *shape].
        binds: of a mask, what it is about, where the environment says so; None = masks lie one behind the other.
        bounds: smallest and largest value that a Box declares, for messages; None = unknown, or no such bound.
    """

    shape: tuple[int, ...]
    dtype: str
    n: int | None = None
    start: int = 0
    kind: str = "vector"
    window: Window | None = None
    binds: Binding | None = None
    bounds: tuple[float | None, float | None] | None = field(default=None, compare=False, repr=False)

    @property
    def looks_like_image(self) -> bool:
        """True for a vector of an image's shape, which is no image since its type or its bounds are others."""
        return self.kind == "vector" and self.n is None and len(self.shape) in (3, 4) and min(self.pixels) >= IMAGE_SIDE

    def describe(self) -> str:
        """Return type, shape and declared bounds in words."""
        if self.bounds is None:
            return f"{self.dtype}, {list(self.shape)}"
        low, high = (
            edge if side is None else f"{side:g}" for side, edge in zip(self.bounds, ("-inf", "inf"), strict=True)
        )
        return f"{self.dtype}, {list(self.shape)}, {low} to {high}"

    @property
    def size(self) -> int:
        """Numbers that one frame contributes to the flat observation vector."""
        if self.n is not None:
            return self.n
        return math.prod(self.shape)

    @property
    def channels_first(self) -> bool:
        """Of an image: [channels, height, width], as it has fewer channels than pixels; else they are last."""
        return self.shape[-3] < self.shape[-1]

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self.shape[-2:] if self.channels_first else self.shape[-3:-1]
        return height, width

    @property
    def channels(self) -> int:
        """Channels of an image, those of all its frames: of the environment's own and of its window."""
        frames = math.prod(self.shape[:-3]) * (self.window.frames if self.window else 1)
        return frames * (self.shape[-3] if self.channels_first else self.shape[-1])


@dataclass(frozen=True)
class ActionSpec:
    """Action that the environment takes.

    Agents see continuous actions as float32 [B, A] and discrete ones as int64 [B, A] counted from 0 (one column a
    sub-action); `start` and `shape` restore the environment's own form. Elements of a Box whose two bounds are
    equal are no columns: the environment is always sent their one value.

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
    def open(self) -> tuple[int, ...]:
        """Flat indices of the elements of a Box that have more than one value; () for other spaces."""
        return tuple(i for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)) if low < high)

    @property
    def size(self) -> int:
        """A: number of columns of an action as the agent sees it."""
        return len(self.open) if self.continuous else len(self.nvec)

    @property
    def flat_size(self) -> int:
        """Numbers of an action laid flat: A of a Box; of the others all choices, one-hot a sub-action."""
        return self.size if self.continuous else sum(self.nvec)


@dataclass(frozen=True)
class EnvSpec:
    """Facts that an agent must know of an environment: its id, observation keys and action."""

    id: str
    obs: dict[str, ArraySpec]
    action: ActionSpec

    @property
    def mask_keys(self) -> tuple[str, ...]:
        """Keys of the masks that say which choices are allowed, in their order.

        Those that the environment binds to sub-actions; else all masks where, one behind the other, they have an entry
        for every choice of every sub-action. () where there are none, or masks of another form: those mean what the
        environment says, and bind nobody here.
        """
        keys = tuple(key for key, part in self.obs.items() if part.kind == "mask")
        if bound := tuple(key for key in keys if self.obs[key].binds is not None):
            return bound
        return keys if keys and sum(self.obs[key].size for key in keys) == sum(self.action.nvec) else ()

    def allowed(self, obs: Mapping[str, Any], part: int, chosen: Sequence[Any], join: Callable[[Any, int], Any]) -> Any:
        """Choices of a sub-action that may be taken, [B, choices] bool; None where no mask is about it.

        Where masks leave none, as in an observation that ends an episode, all may.

        Args:
            obs: key -> [B, ...] of `mask_keys`, all arrays or all tensors; not 0 where a choice is allowed.
            part: the sub-action.
            chosen: [B] each, what the sub-actions before it took, counted from 0.
            join: concatenates some of these along an axis.

        Returns:
            True where it may.
        """
        masks = [(self.obs[key].binds, obs[key].reshape(len(obs[key]), -1) != 0) for key in self.mask_keys]
        if masks and masks[0][0] is None:
            begin = sum(self.action.nvec[:part])
            found = [join([mask for _, mask in masks], 1)[:, begin : begin + self.action.nvec[part]]]
        else:
            found = [
                mask if about.by is None else mask | ~_takes(chosen[about.by], about.when)[:, None]
                for about, mask in masks
                if about is not None and about.part == part
            ]
        if not found:
            return None
        together = functools.reduce(operator.and_, found)
        return together | ~together.any(1)[:, None]

    def windows(self, keys: Iterable[str]) -> dict[str, Window]:
        """The windows of those of these keys that have one."""
        return {key: window for key in keys if (window := self.obs[key].window) is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them back. Infinite bounds become None."""
        data = asdict(self)
        for bound in ("low", "high"):
            data["action"][bound] = [v if abs(v) != float("inf") else None for v in data["action"][bound]]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EnvSpec:
        """Inverse of `to_json`; also of what was written before keys had kinds."""
        obs = {key: _array(value) for key, value in data["obs"].items()}
        a = data["action"]
        low = tuple(-float("inf") if v is None else float(v) for v in a["low"])
        high = tuple(float("inf") if v is None else float(v) for v in a["high"])
        action = ActionSpec(a["space"], tuple(a["shape"]), a["dtype"], tuple(a["nvec"]), tuple(a["start"]), low, high)
        return EnvSpec(data["id"], obs, action)


def _takes(chosen: Any, choices: Sequence[int]) -> Any:
    """Tell whether what was chosen [B] is one of some choices, [B] bool."""
    return functools.reduce(operator.or_, [chosen == choice for choice in choices])


def _array(data: Mapping[str, Any]) -> ArraySpec:
    window: Mapping[str, int] | None = data.get("window")
    binds: Mapping[str, Any] | None = data.get("binds")
    bounds: Sequence[float | None] | None = data.get("bounds")
    parts = (data["dtype"], data["n"], data["start"], data.get("kind", "vector"))
    return ArraySpec(
        tuple(data["shape"]),
        *parts,
        None if window is None else Window(**window),
        None if binds is None else Binding(binds["part"], binds["by"], tuple(binds["when"])),
        None if bounds is None else (bounds[0], bounds[1]),
    )
