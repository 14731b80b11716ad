"""Bitwise comparison of two checkpoints: all state that affects learning, but no times or versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.checkpoint.chunks import digest as chunk_digest
from rlcore.store.directory import RunDirectory
from rlcore.types import Chunk


class NothingInCommonError(UserError):
    """Error for two runs that cannot be compared: they have no checkpoints at the same number of policy steps."""


@dataclass(frozen=True)
class Difference:
    """Tensor, array or single value in the learning state that differs between two checkpoints.

    Attributes:
        entry: path of the value in the learning state, such as `learner/agent/critic.layers.0.weight`.
        index: index of the first element that differs; () if the value is not a tensor or array.
        first: value of this element in the first checkpoint; "absent" if this checkpoint does not have the entry.
        second: value of this element in the second checkpoint, or "absent".
        largest: largest absolute difference of two elements; None if the two values cannot be subtracted.
    """

    entry: str
    index: tuple[int, ...]
    first: Any
    second: Any
    largest: float | None

    def __str__(self) -> str:
        """Return the difference as one line of text."""
        where = self.entry + (str(list(self.index)) if self.index else "")
        size = f", largest |Δ| {self.largest:.6g}" if self.largest is not None else ""
        return f"{where}: {self.first} and {self.second}{size}"


def common(first: Path, second: Path) -> tuple[Path, Path]:
    """Select the two checkpoints to compare.

    If both paths are checkpoints, these are selected. If one or both paths are runs, the newest two undamaged
    checkpoints with the same number of policy steps are selected.

    Args:
        first: directory of a run or of a checkpoint.
        second: directory of a run or of a checkpoint.

    Returns:
        The checkpoint of `first` and that of `second`.

    Raises:
        NothingInCommonError: there are no undamaged checkpoints at the same number of policy steps.
        UserError: a path is neither a run nor a checkpoint, or it is a damaged checkpoint.
    """
    there = [_checkpoints(place) for place in (first, second)]
    if all((place / "manifest.json").exists() for place in (first, second)):
        return next(iter(there[0].values())), next(iter(there[1].values()))
    for moment in sorted(there[0].keys() & there[1].keys(), reverse=True):
        pair = there[0][moment], there[1][moment]
        if all(checkpoint.damage(path) is None for path in pair):
            return pair
    raise NothingInCommonError(
        f"{first} and {second}: no undamaged checkpoints at the same number of policy steps; the first has "
        f"{_list(there[0])}, the second {_list(there[1])}; train with checkpoint.keep_last=null to keep all checkpoints"
    )


def _checkpoints(place: Path) -> dict[int, Path]:
    if (place / "manifest.json").exists():
        wrong = checkpoint.damage(place)
        if wrong:
            raise UserError(f"checkpoint {place}: {wrong}; choose another checkpoint")
        return {checkpoint.manifest(place)["policy_steps"]: place}
    run = RunDirectory.existing(place)
    found = {_policy_steps(path): path for path in checkpoint.newest_first(run.checkpoints)}
    if not found:
        raise UserError(f"{place}: no checkpoint yet")
    return found


def _policy_steps(path: Path) -> int:
    """Return the policy steps in the manifest of a checkpoint; if it is damaged, those in the name of its folder."""
    try:
        return checkpoint.manifest(path)["policy_steps"]
    except UserError:
        return int(path.name)


def _list(choices: Mapping[int, Path]) -> str:
    return ", ".join(str(steps) for steps in sorted(choices, reverse=True))


def differences(first: Path, second: Path) -> Iterator[Difference]:
    """Yield all differences between the learning states of two undamaged checkpoints.

    They have the order of the values in the first checkpoint. Values that exist only in the second one follow.
    """
    states = [dict(_leaves(checkpoint.load(path)[0])) for path in (first, second)]
    for entry in [*states[0], *(e for e in states[1] if e not in states[0])]:
        if entry not in states[0] or entry not in states[1]:
            there = ["present" if entry in state else "absent" for state in states]
            yield Difference(entry, (), there[0], there[1], None)
            continue
        difference = _differs(entry, states[0][entry], states[1][entry])
        if difference is not None:
            yield difference


def tensor_digests(state: Any) -> str:
    """Return a string with 8 hexadecimal digits for each tensor, array and chunk of a state, in their order.

    They are the first digits of the SHA-256 of its content, so that a difference in one tensor is visible.
    """
    return "".join(_digest(value) for _, value in _tensors(state))


def tensor_names(state: Any) -> list[str]:
    """Return the path of each tensor, array and chunk of a state, such as `learner/agent/critic.layers.0.weight`.

    The order is that of the digests in the result of `tensor_digests`.
    """
    return [place for place, _ in _tensors(state)]


def _tensors(state: Any) -> Iterator[tuple[str, torch.Tensor | np.ndarray | Chunk]]:
    return ((place, value) for place, value in _leaves(state) if isinstance(value, (torch.Tensor, np.ndarray, Chunk)))


def _digest(value: torch.Tensor | np.ndarray | Chunk) -> str:
    if isinstance(value, Chunk):
        return chunk_digest(value)[:8]
    tensor = torch.from_numpy(np.array(value, order="C")) if isinstance(value, np.ndarray) else value.detach().cpu()
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    row = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))  # `view` needs a stride of 1
    digest.update(row.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:8]


def _leaves(state: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        if not state:
            yield place, {}
        for key, value in state.items():
            yield from _leaves(value, f"{place}/{key}" if place else str(key))
    elif isinstance(state, (list, tuple)):
        yield f"{place}/length", len(state)
        for index, value in enumerate(state):
            yield from _leaves(value, f"{place}/{index}")
    else:
        yield place, state


def _differs(entry: str, first: Any, second: Any) -> Difference | None:
    if isinstance(first, Chunk) and isinstance(second, Chunk):
        if [part["sha256"] for part in first.stored.values()] == [part["sha256"] for part in second.stored.values()]:
            return None
        one, two = first.columns(), second.columns()
        if one.keys() != two.keys():
            return Difference(entry, (), " ".join(one), " ".join(two), None)
        return next(filter(None, (_differs(f"{entry}/{name}", one[name], two[name]) for name in sorted(one))), None)
    if not isinstance(first, (torch.Tensor, np.ndarray)) or not isinstance(second, (torch.Tensor, np.ndarray)):
        if type(first) is type(second) and json.dumps(first) == json.dumps(second):
            return None
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (first, second))
        return Difference(entry, (), first, second, abs(first - second) if numbers else None)
    a, b = torch.as_tensor(first), torch.as_tensor(second)
    if a.shape != b.shape or a.dtype != b.dtype:
        return Difference(entry, (), f"{a.dtype} {list(a.shape)}", f"{b.dtype} {list(b.shape)}", None)
    unequal = _bits(a) != _bits(b)
    if not unequal.any():
        return None
    index = tuple(int(i) for i in unequal.nonzero()[0])
    largest = (a.double() - b.double()).abs().nan_to_num(nan=float("inf")).max().item()
    return Difference(entry, index, a[index].item(), b[index].item(), largest)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Reinterpret the bits of a float tensor as integers, so that NaN equals itself and 0.0 differs from -0.0."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(kinds[x.element_size()]) if x.is_floating_point() else x
