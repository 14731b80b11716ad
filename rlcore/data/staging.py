"""Transfer of time steps between environments and agents, and the buffer in which a rollout is collected.

Environments return NumPy arrays, which are converted to tensors, or tensors, which stay on their device if possible.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rlcore.types import Rows, TimeStep, Trajectory

FLAGS = ("reward", "terminated", "truncated", "is_first")
ALIGNED = 16  # bytes; alignment of columns, sufficient for every dtype


def tensor(rows: Rows, device: torch.device | str) -> Tensor:
    """Convert a NumPy array or tensor to a tensor on a device, without a copy if possible."""
    return (torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows).to(device)


def answer(action: Tensor, time_step: TimeStep) -> Rows:
    """Convert an action to the array type that the environment takes.

    This is a NumPy array if the fields of `time_step` are NumPy arrays, otherwise a tensor on their device.
    """
    kept = time_step.reward
    if isinstance(kept, np.ndarray):
        return (action if action.is_cpu else action.cpu()).numpy()
    return action.to(kept.device)


def columns(time_step: TimeStep | Trajectory) -> dict[str, Rows]:
    """Return the fields of a time step or trajectory as a flat dict, name -> [B, ...] or [T, B, ...].

    The names are obs/<key>, reward, terminated, truncated and is_first.
    """
    return {f"obs/{key}": value for key, value in time_step.obs.items()} | {f: getattr(time_step, f) for f in FLAGS}


def from_columns(stored: Mapping[str, Rows]) -> TimeStep:
    """Create a time step from a flat dict with obs/<key>, reward, terminated, truncated, is_first (see `columns`)."""
    return TimeStep(_obs(stored), *(stored[flag] for flag in FLAGS))


def as_trajectory(stored: Mapping[str, Tensor], action: Tensor) -> Trajectory:
    """Create a trajectory [T, B], or a single time step [B], from actions and a flat dict of the other fields.

    The dict has the keys obs/<key>, reward, terminated, truncated and is_first (see `columns`).
    """
    reward, terminated, truncated, is_first = (stored[flag] for flag in FLAGS)
    return Trajectory(_obs(stored), action, reward, terminated, truncated, is_first)


def _obs(stored: Mapping[str, Rows]) -> dict[str, Rows]:
    return {key[4:]: value for key, value in stored.items() if key.startswith("obs/")}


def copy_time_step(time_step: TimeStep) -> TimeStep:
    """Return a deep copy of a time step."""
    return from_columns(
        {k: v.copy() if isinstance(v, np.ndarray) else v.clone() for k, v in columns(time_step).items()}
    )


class StagingBuffer:
    """Buffer that stores the time steps of a rollout on the device of the environments, and copies them to the agent.

    Args:
        length: T+1, number of rows: the T time steps of a rollout and the time step after them.
        time_step: the first time step, which determines shapes and dtypes.
        device: device of the agent.
        packed: True: all fields of a time step are copied to the device in one transfer. None: True if the environments
            return NumPy arrays and the device is not the CPU.
    """

    # rows: `columns` [T+1, B, ...]; arrivals: views of each row [B, ...], for environments that write in place;
    # last: the time step in row T, which becomes row 0 of the next rollout

    def __init__(self, length: int, time_step: TimeStep, device: torch.device, packed: bool | None = None) -> None:
        first = columns(time_step)
        numpy = all(isinstance(rows, np.ndarray) for rows in first.values())
        packed = numpy and device.type != "cpu" if packed is None else packed
        self._packed = Packed(length, first, device) if packed else None
        self.rows: dict[str, Rows] = {
            key: self._packed.on_host[key]
            if self._packed
            else np.zeros((length, *rows.shape), rows.dtype)
            if isinstance(rows, np.ndarray)
            else rows.new_zeros((length, *rows.shape))
            for key, rows in first.items()
        }
        self.arrivals = [from_columns({key: rows[t] for key, rows in self.rows.items()}) for t in range(length)]
        self.device = device
        self.last: TimeStep | None = None
        self._sent = 0  # number of rows of this rollout that were copied to the device
        self._shared = numpy and device.type == "cpu" and not packed
        self._shown: dict[int, tuple[dict[str, Tensor], Tensor]] = {}  # views, created once; only if memory is shared
        self._parts: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.arrivals)

    def begin(self, time_step: TimeStep) -> None:
        """Start a rollout: store its first time step in row 0.

        The first time step is usually the last one (row T) of the previous rollout. In this case it is already on the
        agent's device, and it is not transferred again.
        """
        self.put(0, time_step)
        self._sent = 0
        if self._packed and time_step is self.last:
            self._packed.repeat(len(self) - 1, 0)
            self._sent = 1

    def put(self, t: int, time_step: TimeStep) -> None:
        """Copy a time step into row t, unless the environment wrote it directly into this row."""
        if time_step is not self.arrivals[t]:
            for key, value in columns(time_step).items():
                self.rows[key][t] = value

    def show(self, t: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the observations, key -> [B, ...], and `is_first` [B] of row t on the agent's device.

        Rows must be requested in ascending order, because a call also transfers all earlier rows of the rollout.
        """
        if t in self._shown:
            return self._shown[t]
        if self._packed:
            rows = {key: column[t] for key, column in self._send_to(t).items()}
            return _obs(rows), rows["is_first"]
        time_step = self.arrivals[t]
        obs = {key: tensor(rows, self.device) for key, rows in time_step.obs.items()}
        shown = obs, tensor(time_step.is_first, self.device)
        if self._shared:
            self._shown[t] = shown
        return shown

    def _send_to(self, t: int) -> dict[str, Tensor]:
        """Copy the rows up to t that are not on the agent's device yet; return name -> [T+1, B, ...] on this device."""
        if self._packed is None:
            return {key: tensor(rows, self.device) for key, rows in self.rows.items()}
        for row in range(self._sent, t + 1):
            self._packed.send(row)
        self._sent = max(self._sent, t + 1)
        return self._packed.there

    def count_ended(self) -> int | Tensor:
        """Return the number of episodes that ended in rows 0..T-1.

        It is a tensor [] on the device of the environments, if these return tensors, so that a GPU is not waited for.
        """
        terminated, truncated = self.rows["terminated"][:-1], self.rows["truncated"][:-1]
        ended: Rows = terminated | truncated
        return ended.sum() if isinstance(ended, Tensor) else int(ended.sum())

    def split(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return rows 0..T-1, name -> [T, B, ...], and row T, name -> [B, ...], on the agent's device."""
        if self._parts is None or not self._shared:
            rows = self._send_to(len(self) - 1)
            self._parts = {k: v[:-1] for k, v in rows.items()}, {k: v[-1] for k, v in rows.items()}
        return self._parts


class Packed:
    """Memory block with the rows (time steps) of a rollout on the host, and a copy of it on the agent's device.

    Rows are transferred one by one. If the device is a GPU, the host memory is pinned, so that copies are asynchronous.

    Args:
        length: number of rows.
        columns: name -> [B, ...], an example of a row, which determines the shapes and dtypes.
        device: device of the copy.
    """

    # on_host, there: name -> [length, B, ...], views of the block on the host and of its copy on the device

    def __init__(self, length: int, columns: Mapping[str, np.ndarray], device: torch.device) -> None:
        places, size = dict[str, int](), 0
        for name, rows in columns.items():
            places[name], size = size, size + -(-rows.nbytes // ALIGNED) * ALIGNED
        self._host = torch.zeros(length, size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._there = torch.zeros(length, size, dtype=torch.uint8, device=device)
        self.on_host: dict[str, np.ndarray] = {}
        self.there: dict[str, Tensor] = {}
        for name, rows in columns.items():
            place, shape = places[name], (length, *rows.shape)
            strides = np.empty(rows.shape, rows.dtype).strides  # strides of a contiguous row
            self.on_host[name] = np.ndarray(shape, rows.dtype, self._host.numpy(), place, (size, *strides))
            kind = torch.from_numpy(np.empty(0, rows.dtype)).dtype
            part = self._there[:, place : place + rows.nbytes]
            self.there[name] = part.view(kind).unflatten(1, rows.shape)

    def send(self, t: int) -> None:
        """Copy row t from the host to the device."""
        self._there[t].copy_(self._host[t], non_blocking=True)

    def repeat(self, source: int, t: int) -> None:
        """Copy row `source` to row t, on the device only."""
        self._there[t].copy_(self._there[source])
