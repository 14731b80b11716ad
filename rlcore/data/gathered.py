"""Batches out of the rings of a memory, K at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.arrivals import FLAGS
from rlcore.data.ring import HostRing, Ring, to_device
from rlcore.types import Steps

ManyColumns = dict[str, tuple[Tensor, ...]]  # column -> K tensors


def gather_batches(
    rings: Mapping[str, Ring], begins: np.ndarray, first: int, offsets: np.ndarray, before: int, target: torch.device
) -> Iterator[tuple[Any, ...]]:
    """Gather K batches of N sequences from rings `given`, `said` and `carry`, the last two where they are there.

    Args:
        rings: of the memory.
        begins: places [K, N] where sequences begin.
        first: the first place that any of their rows may have.
        offsets: [H + L + 1, 1], from there to each of their rows and to the arrival.
        before: H, rows in front of each sequence.
        target: the device that they are handed out on.

    Yields:
        Steps [L, N], their carry by its tensors' names, with the H rows before in `past`; those before the first of all
        time are zeros. The arrival [N]. The places of the steps [L, N].
    """
    rows = begins[:, None] + offsets
    cuts = slice(before, -1), -1, *([slice(before)] if before else [])
    steps, last, *prior = _gather(rings["given"], rows, first, target, *cuts)
    (said,) = _gather(rings["said"], rows, first, target, slice(before, -1)) if "said" in rings else ({},)
    (carry,) = _gather(rings["carry"], begins[:, None], first, target, 0) if "carry" in rings else ({},)
    keys = [(name[4:], name) for name in steps if name.startswith("obs/")]
    for k, places in enumerate(rows[:, before:-1]):
        drawn = _steps(steps, keys, k)
        if said or carry:
            drawn.extras = {name: value[k] for name, value in said.items()}
            drawn.carry = {name: value[k] for name, value in carry.items()}
        if prior:
            drawn.past = {name: value[k] for name, value in prior[0].items() if _is_shown(name)}
        yield drawn, _steps(last, keys, k), places


def _is_shown(name: str) -> bool:
    return name.startswith("obs/") or name in ("action", "is_first")


def _gather(ring: Ring, places: np.ndarray, first: int, target: torch.device, *cuts: slice | int) -> list[ManyColumns]:
    single = len(places) == 1  # to take apart costs as much as to find
    found = ring.gather(places[0] if single else places, first, *cuts)
    if target.type != "cpu" or not isinstance(ring, HostRing):
        found = [{n: to_device(value, target) for n, value in part.items()} for part in found]
    return [{n: (value,) if single else value.unbind(0) for n, value in part.items()} for part in found]


def _steps(columns: ManyColumns, keys: list[tuple[str, str]], k: int) -> Steps:
    """Steps, or an arrival, of the k-th of columns that are K tensors each, and of the names of their observations."""
    obs = {key: columns[name][k] for key, name in keys}
    reward, terminated, truncated, is_first = [columns[flag][k] for flag in FLAGS]
    return Steps(obs, columns["action"][k], reward, terminated, truncated, is_first)
