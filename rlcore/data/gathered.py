"""Copying of several batches in one operation from the ring buffers in which a replay buffer stores its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.ring import HostRing, Ring, to_device
from rlcore.data.staging import FLAGS
from rlcore.types import Trajectory

ManyColumns = dict[str, tuple[Tensor, ...]]  # name of a column -> K tensors


def gather_batches(
    rings: Mapping[str, Ring], begins: np.ndarray, first: int, offsets: np.ndarray, before: int, target: torch.device
) -> Iterator[tuple[Any, ...]]:
    """Copy K batches, each of N sequences of L rows, from the ring buffers of a replay buffer.

    A sequence is copied together with the H rows before it, for agents with an observation history, and with the time
    step after it. The place of row number t of environment b is the integer t · B + b.

    Args:
        rings: ring buffers by name. `given` has environment data and actions. Two further ring buffers are optional:
            `said` has the extra outputs of the agent (`Trajectory.extras`), and `carry` its recurrent state.
        begins: [K, N], places of the first rows of the sequences.
        first: lower bound of the places of all rows that are copied.
        offsets: [H + L + 1, 1], place of each copied row of a sequence minus the place of the sequence's first row:
            -H · B, …, -B, 0, B, …, L · B.
        before: H, number of rows before each sequence that are copied.
        target: device of the batches.

    Yields:
        For each batch: the sequences as a Trajectory [L, N], the time step after them [N], and the places of the rows
        of the sequences [L, N]. In the trajectory, `carry` is a dict by tensor name, and `past` has the H rows before
        each sequence. Rows before the first row of the run are zeros.
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
    single = len(places) == 1  # `unbind` takes as long as copying one batch, so it is avoided for K = 1
    found = ring.gather(places[0] if single else places, first, *cuts)
    if target.type != "cpu" or not isinstance(ring, HostRing):
        found = [{n: to_device(value, target) for n, value in part.items()} for part in found]
    return [{n: (value,) if single else value.unbind(0) for n, value in part.items()} for part in found]


def _steps(columns: ManyColumns, keys: list[tuple[str, str]], k: int) -> Trajectory:
    """Create the trajectory, or the time step, of batch k. `keys` has pairs (observation key, name of its column)."""
    obs = {key: columns[name][k] for key, name in keys}
    reward, terminated, truncated, is_first = [columns[flag][k] for flag in FLAGS]
    return Trajectory(obs, columns["action"][k], reward, terminated, truncated, is_first)
