"""Description of an environment for agents: its observation keys and its action."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

IMAGE_SIDE = 8  # pixels; an array with a smaller side is not treated as an image
IMAGES_ARE = "an image is a Box of uint8, or of real numbers with the bounds 0 and 1"
ACTION = "past_action"  # key of the agent's own past actions in its history


@dataclass(frozen=True)
class Window:
    """Time steps of an observation key that an agent sees at once, for example a frame stack.

    These are the newest time step and every `dilation`-th one before it, `frames` in total.

    Attributes:
        frames: number of time steps.
        dilation: distance between two of them.
        padded: if False, the first observation of the episode replaces time steps before the start of the episode. If
            True, zeros replace them, and the agent also sees a mask with the key `valid_key(key)`, [frames] bool, which
            is True for time steps of the episode.
    """

    frames: int
    dilation: int = 1
    padded: bool = False

    @property
    def reach(self) -> int:
        """Distance from the newest to the oldest of these time steps, which is the number of past rows to store."""
        return (self.frames - 1) * self.dilation


def valid_key(key: str) -> str:
    """Return the key of the mask of a padded window over the observation key `key`."""
    return f"{key}_valid"


@dataclass(frozen=True)
class Binding:
    """Sub-action to which an action mask applies, and the condition under which it applies.

    Attributes:
        part: index of the sub-action; the mask has one entry for each of its choices.
        by: index of an earlier sub-action; the mask applies only if that sub-action takes a choice in `when`. None: the
            mask always applies.
        when: choices of the earlier sub-action, counted from 0.
    """

    part: int
    by: int | None = None
    when: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArraySpec:
    """Description of an observation key: shape, dtype and kind.

    Attributes:
        shape: shape of one observation, without the batch dimension; () for a Discrete observation.
        dtype: NumPy name of the environment's dtype.
        n: number of values of a Discrete observation (encoded one-hot), None for a Box.
        start: smallest value of a Discrete observation.
        kind: "vector", "image", "mask" (of actions) or "goal"; an algorithm declares which kinds it reads.
        window: past observations that the agent sees together with the newest one (for images, set by
            `env.frame_stack`); it then receives [frames, *shape]. None: the agent sees only the newest one.
        binds: for a mask: the sub-action to which it applies, if the environment declares it. None: all masks of the
            environment, concatenated, have one entry for every choice of every sub-action.
        bounds: smallest and largest value that a Box declares, for messages. Either one is None if it is unbounded;
            None instead of the pair: unknown.
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
        """True if the key has the shape of an image, but its kind is "vector" because of its dtype or bounds."""
        return self.kind == "vector" and self.n is None and len(self.shape) in (3, 4) and min(self.pixels) >= IMAGE_SIDE

    def describe(self) -> str:
        """Return dtype, shape and declared bounds as text for messages, for example `float32, [4], -inf to inf`."""
        if self.bounds is None:
            return f"{self.dtype}, {list(self.shape)}"
        low, high = (
            edge if side is None else f"{side:g}" for side, edge in zip(self.bounds, ("-inf", "inf"), strict=True)
        )
        return f"{self.dtype}, {list(self.shape)}, {low} to {high}"

    @property
    def size(self) -> int:
        """Number of elements of one observation as a flat vector; a Discrete observation is encoded one-hot."""
        if self.n is not None:
            return self.n
        return math.prod(self.shape)

    @property
    def channels_first(self) -> bool:
        """True if an image is [channels, height, width], False if it is [height, width, channels].

        The channels are the first or the last dimension, whichever is smaller.
        """
        return self.shape[-3] < self.shape[-1]

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self.shape[-2:] if self.channels_first else self.shape[-3:-1]
        return height, width

    @property
    def channels(self) -> int:
        """Number of channels of the image that a network receives: channels of one frame, times number of frames.

        Frames can be stacked by the environment (additional leading dimensions of `shape`), by `window`, or by both.
        """
        frames = math.prod(self.shape[:-3]) * (self.window.frames if self.window else 1)
        return frames * (self.shape[-3] if self.channels_first else self.shape[-1])


@dataclass(frozen=True)
class ActionSpec:
    """Description of an environment's action space.

    Actions have two formats. The agent's format is float32 [B, A] for continuous actions. For discrete ones it is int64
    [B, A], counted from 0, with one column per sub-action. The environment's format is [B, *shape], counted from
    `start`. Elements of a Box whose lower and upper bounds are equal have no column in the agent's format, because they
    can have only one value.

    A composite action (a Dict or Tuple of the other spaces) is one vector in both formats: its parts, flattened and
    concatenated. It is float32 in the agent's format and float64 in the environment's format.

    Attributes:
        space: "Box", "Discrete", "MultiDiscrete", "MultiBinary" or "Composite".
        shape: shape in the environment, without the batch dimension; () for Discrete.
        dtype: NumPy name of the environment's dtype.
        nvec: number of choices of each sub-action; () for Box.
        start: smallest value of each sub-action; () for Box.
        low: lower bound of each element of a Box, flattened; -inf if unbounded.
        high: upper bound of each element of a Box, flattened; inf if unbounded.
        parts: parts of a composite action, none of which is composite; () for other spaces.
        names: path of each part in the environment's space, such as "arm/0".
    """

    space: str
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    parts: tuple[ActionSpec, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def agent_dtype(self) -> str:
        """NumPy name of the dtype of actions in the agent's format: int64 for discrete actions, else float32."""
        return "float32" if self.continuous or self.parts else "int64"

    @property
    def continuous(self) -> bool:
        """True for a Box."""
        return self.space == "Box"

    @property
    def open(self) -> tuple[int, ...]:
        """Flat indices of the elements of a Box whose bounds differ; () for other spaces."""
        return tuple(i for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)) if low < high)

    @property
    def size(self) -> int:
        """A, the number of columns of actions [B, A] in the agent's format.

        These are the elements of a Box that have different bounds, or the sub-actions of a discrete action space. For a
        composite action, it is the sum over its parts.
        """
        if self.parts:
            return sum(part.size for part in self.parts)
        return len(self.open) if self.continuous else len(self.nvec)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each discrete sub-action; for a composite action, of those of all its parts."""
        return tuple(count for part in self.parts for count in part.nvec) if self.parts else self.nvec

    @property
    def width(self) -> int:
        """Number of elements of an action in the environment's format."""
        return math.prod(self.shape)

    @property
    def flat_size(self) -> int:
        """Size of an action as a vector: A for a Box, otherwise the sum of `nvec` (sub-actions encoded one-hot).

        For a composite action, it is the sum over its parts.
        """
        if self.parts:
            return sum(part.flat_size for part in self.parts)
        return self.size if self.continuous else sum(self.nvec)


@dataclass(frozen=True)
class EnvSpec:
    """Description of an environment for agents: its id, observation keys and action."""

    id: str
    obs: dict[str, ArraySpec]
    action: ActionSpec

    @property
    def mask_keys(self) -> tuple[str, ...]:
        """Observation keys of the action masks that are applied.

        If some masks declare their sub-action (`binds`), only these are applied. Otherwise all masks are applied,
        provided that they have, concatenated, one entry for every choice of every sub-action. If they have another
        size, no mask is applied, and the result is ().
        """
        keys = tuple(key for key, part in self.obs.items() if part.kind == "mask")
        if bound := tuple(key for key in keys if self.obs[key].binds is not None):
            return bound
        return keys if keys and sum(self.obs[key].size for key in keys) == sum(self.action.choices) else ()

    def conditions(self, part: int) -> frozenset[int]:
        """Return the earlier sub-actions on whose choices the masks of a sub-action depend."""
        return frozenset(about.by for about in self._bindings() if about.part == part and about.by is not None)

    def alike(self, part: int) -> list[tuple[int, ...]]:
        """Group the choices of a sub-action that have the same effect on the masks of later sub-actions."""
        sets = [about.when for about in self._bindings() if about.by == part]
        groups: dict[tuple[bool, ...], tuple[int, ...]] = {}
        for choice in range(self.action.choices[part]):
            effect = tuple(choice in when for when in sets)
            groups[effect] = (*groups.get(effect, ()), choice)
        return list(groups.values())

    def _bindings(self) -> list[Binding]:
        return [about for key in self.mask_keys if (about := self.obs[key].binds) is not None]

    def allowed(
        self,
        obs: Mapping[str, Any],
        part: int,
        chosen: Sequence[Any] | Mapping[int, Any],
        join: Callable[[Any, int], Any],
    ) -> Any:
        """Apply the action masks of B environments: compute which choices of a sub-action are allowed.

        If the masks of an environment allow no choice (for example in the last observation of an episode), all choices
        are allowed.

        Args:
            obs: the masks, key -> [B, ...] for each of `mask_keys`, all NumPy arrays or all tensors. An entry is
                nonzero if the choice is allowed.
            part: index of the sub-action.
            chosen: for each sub-action before `part`, the choices that were made, [B], counted from 0. Sub-actions that
                are not in `conditions(part)` may be missing.
            join: function that concatenates a list of arrays or tensors along an axis, such as `torch.cat`.

        Returns:
            [B, choices] bool, True if a choice is allowed; None if no mask applies to the sub-action.
        """
        found = [
            mask if about is None or about.by is None else mask | ~_takes(chosen[about.by], about.when)[:, None]
            for about, mask in self._masks_of(part, obs, join)
        ]
        if not found:
            return None
        together = functools.reduce(operator.and_, found)
        return together | ~together.any(1)[:, None]

    def nothing_allowed(self, obs: Mapping[str, Any], join: Callable[[Any, int], Any]) -> Any:
        """Return [B] bool, True if the action masks allow no action; None if every mask depends on a condition.

        Masks with a condition are ignored. The arguments are those of `allowed`.
        """
        found: list[Any] = []
        for part in range(len(self.action.choices)):
            always = [mask for about, mask in self._masks_of(part, obs, join) if about is None or about.by is None]
            if always:
                found.append(~functools.reduce(operator.and_, always).any(1))
        return functools.reduce(operator.or_, found) if found else None

    def _masks_of(
        self, part: int, obs: Mapping[str, Any], join: Callable[[Any, int], Any]
    ) -> list[tuple[Binding | None, Any]]:
        """Return the masks of a sub-action, each as its binding and [B, choices] bool."""
        masks = [(self.obs[key].binds, obs[key].reshape(obs[key].shape[0], -1) != 0) for key in self.mask_keys]
        if masks and masks[0][0] is None:
            begin, count = sum(self.action.choices[:part]), self.action.choices[part]
            return [(None, join([mask for _, mask in masks], 1)[:, begin : begin + count])]
        return [(about, mask) for about, mask in masks if about is not None and about.part == part]

    def windows(self, keys: Iterable[str]) -> dict[str, Window]:
        """Return key -> window, for those keys in `keys` whose past observations the agent also sees."""
        return {key: window for key in keys if (window := self.obs[key].window) is not None}

    def to_json(self) -> dict[str, Any]:
        """Convert the spec to JSON values, from which `from_json` creates it again. Infinite bounds become None."""
        data = asdict(self)
        for action in (data["action"], *data["action"]["parts"]):
            for bound in ("low", "high"):
                action[bound] = [v if abs(v) != float("inf") else None for v in action[bound]]
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EnvSpec:
        """Create a spec from the JSON values that `to_json` returned.

        Other values, for example of a damaged file, raise KeyError, TypeError, ValueError or AttributeError.
        """
        obs = {key: _array(value) for key, value in data["obs"].items()}
        action = _action(data["action"])
        whole = (action, *action.parts)
        texts = [
            data["id"],
            *(text for each in whole for text in (each.space, each.dtype, *each.names)),
            *obs,
            *(text for each in obs.values() for text in (each.dtype, each.kind)),
        ]
        sizes: list[Any] = [
            *(size for each in whole for size in (*each.shape, *each.nvec, *each.start)),
            *(size for each in obs.values() for size in each.shape),
        ]
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(size, int) for size in sizes):
            raise TypeError("a text or a size of the spec has a wrong type")
        return EnvSpec(data["id"], obs, action)


def is_mask_name(key: str) -> bool:
    """Return True if an observation key must be an action mask: its name, without outer keys, starts with action_mask.

    A key that starts with `mask` is an action mask too, but only if its space contains only the values 0 and 1.
    """
    return key.rpartition(".")[2].startswith("action_mask")


def _takes(chosen: Any, choices: Sequence[int]) -> Any:
    """Return [B] bool: for each element of `chosen` [B], True if it is equal to one of `choices`."""
    return functools.reduce(operator.or_, [chosen == choice for choice in choices])


def _action(data: Mapping[str, Any]) -> ActionSpec:
    low = tuple(-float("inf") if v is None else float(v) for v in data["low"])
    high = tuple(float("inf") if v is None else float(v) for v in data["high"])
    numbers = (tuple(data["shape"]), data["dtype"], tuple(data["nvec"]), tuple(data["start"]), low, high)
    parts = tuple(_action(part) for part in data.get("parts", ()))  # absent in files of version 0.2.0 and older
    return ActionSpec(data["space"], *numbers, parts, tuple(data.get("names", ())))


def _array(data: Mapping[str, Any]) -> ArraySpec:
    window: Mapping[str, Any] | None = data["window"]
    binds: Mapping[str, Any] | None = data["binds"]
    bounds: Sequence[float | None] | None = data["bounds"]
    parts = (data["dtype"], data["n"], data["start"], data["kind"])
    return ArraySpec(
        tuple(data["shape"]),
        *parts,
        None if window is None else Window(**window),
        None if binds is None else Binding(binds["part"], binds["by"], tuple(binds["when"])),
        None if bounds is None else (bounds[0], bounds[1]),
    )
