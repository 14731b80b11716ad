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

Columns = dict[str, tuple[Tensor, ...]]  # column -> K tensors


def gather_batches(
    rings: Mapping[str, Ring], begins: np.ndarray, offsets: np.ndarray, before: int, target: torch.device
) -> Iterator[tuple[Any, ...]]:
    """Gather K batches of N sequences from rings `given`, `said` and `carry`, the last two where they are there.

    Args:
        rings: of the memory.
        begins: places [K, N] where sequences begin.
        offsets: [H + L + 1, 1], from there to each of their rows and to the arrival.
        before: H, rows in front of each sequence.
        target: the device that they are handed out on.

    Yields:
        Steps [L, N], their carry by its tensors' names, with the H rows before in `past`; those before the first of all
        time are zeros. The arrival [N]. The places of the steps [L, N].
    """
    rows = begins[:, None] + offsets
    cuts = slice(before, -1), -1, *([slice(before)] if before else [])
    steps, last, *prior = _gather(rings["given"], rows, target, *cuts)
    (said,) = _gather(rings["said"], rows, target, slice(before, -1)) if "said" in rings else ({},)
    (carry,) = _gather(rings["carry"], begins[:, None], target, 0) if "carry" in rings else ({},)
    for k, places in enumerate(rows[:, before:-1]):
        drawn = _steps(steps, k)
        drawn.extras = {name: value[k] for name, value in said.items()}
        drawn.carry = {name: value[k] for name, value in carry.items()}
        drawn.past = {name: value[k] for part in prior for name, value in part.items() if _is_shown(name)}
        yield drawn, _steps(last, k), places


def _is_shown(name: str) -> bool:
    return name.startswith("obs/") or name in ("action", "is_first")


def _gather(ring: Ring, places: np.ndarray, target: torch.device, *cuts: slice | int) -> list[Columns]:
    found = ring.gather(places, *cuts)
    if target.type != "cpu" or not isinstance(ring, HostRing):
        found = [{n: to_device(value, target) for n, value in part.items()} for part in found]
    return [{n: value.unbind(0) for n, value in part.items()} for part in found]


def _steps(columns: Columns, k: int) -> Steps:
    """Steps, or an arrival, of the k-th of columns that are K tensors each."""
    obs = {name[4:]: value[k] for name, value in columns.items() if name.startswith("obs/")}
    reward, terminated, truncated, is_first = (columns[flag][k] for flag in FLAGS)
    return Steps(obs, columns["action"][k], reward, terminated, truncated, is_first)
