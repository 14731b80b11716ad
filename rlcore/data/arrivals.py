"""Between environments and agents: what NumPy environments give becomes tensors, what others give stays where it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rlcore.data.packed import Packed
from rlcore.types import Arrival, Rows, Steps

FLAGS = ("reward", "terminated", "truncated", "is_first")


def tensor(rows: Rows, device: torch.device | str) -> Tensor:
    """Rows of an arrival on a device; they share memory wherever they can."""
    return (torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows).to(device)


def answer(action: Tensor, arrival: Arrival) -> Rows:
    """An action in the environment's form as whoever sent the arrival takes it: NumPy, or on its device."""
    kept = arrival.reward
    if isinstance(kept, np.ndarray):
        return (action if action.is_cpu else action.cpu()).numpy()
    return action.to(kept.device)


def columns(arrival: Arrival | Steps) -> dict[str, Rows]:
    """obs/<key> and the flags, each [B, ...], or [T, B, ...] of steps."""
    return {f"obs/{key}": value for key, value in arrival.obs.items()} | {f: getattr(arrival, f) for f in FLAGS}


def from_columns(stored: Mapping[str, Rows]) -> Arrival:
    """The arrival of `columns`."""
    return Arrival(_obs(stored), *(stored[flag] for flag in FLAGS))


def as_steps(stored: Mapping[str, Tensor], action: Tensor) -> Steps:
    """The steps of `columns`, with their actions; of an arrival, likewise."""
    reward, terminated, truncated, is_first = (stored[flag] for flag in FLAGS)
    return Steps(_obs(stored), action, reward, terminated, truncated, is_first)


def _obs(stored: Mapping[str, Rows]) -> dict[str, Rows]:
    return {key[4:]: value for key, value in stored.items() if key.startswith("obs/")}


def copy_arrival(arrival: Arrival) -> Arrival:
    """A copy of an arrival, which shares no memory with it."""
    return from_columns({k: v.copy() if isinstance(v, np.ndarray) else v.clone() for k, v in columns(arrival).items()})


class Room:
    """Storage for the arrivals of a rollout, where its environments' arrivals lie.

    Args:
        length: T+1.
        arrival: the first one; shapes and types count.
        device: where agents see them.
        packed: rows are copied to the device one by one, as wholes; None = where NumPy environments meet a GPU.
    """

    # rows: as `columns`, [T+1, B, ...]; arrivals: views of them, [B, ...] each, for environments that write in place;
    # last: the arrival that row T holds, which is to come again as row 0

    def __init__(self, length: int, arrival: Arrival, device: torch.device, packed: bool | None = None) -> None:
        first = columns(arrival)
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
        self.last: Arrival | None = None
        self._sent = 0  # rows of this rollout that the device has
        self._shared = numpy and device.type == "cpu" and not packed
        self._shown: dict[int, tuple[dict[str, Tensor], Tensor]] = {}  # where memory is shared: made once
        self._parts: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.arrivals)

    def begin(self, arrival: Arrival) -> None:
        """Take the arrival of row 0, which the device need not be sent again where it was row T of the last rollout."""
        self.put(0, arrival)
        self._sent = 0
        if self._packed and arrival is self.last:
            self._packed.repeat(len(self) - 1, 0)
            self._sent = 1

    def put(self, t: int, arrival: Arrival) -> None:
        """Copy an arrival into row t, unless it was written there."""
        if arrival is not self.arrivals[t]:
            for key, value in columns(arrival).items():
                self.rows[key][t] = value

    def show(self, t: int) -> tuple[dict[str, Tensor], Tensor]:
        """Observations key -> [B, ...] and is_first [B] of row t on the device; rows are asked for in their order."""
        if t in self._shown:
            return self._shown[t]
        if self._packed:
            rows = {key: column[t] for key, column in self._send_to(t).items()}
            return _obs(rows), rows["is_first"]
        arrival = self.arrivals[t]
        obs = {key: tensor(rows, self.device) for key, rows in arrival.obs.items()}
        shown = obs, tensor(arrival.is_first, self.device)
        if self._shared:
            self._shown[t] = shown
        return shown

    def _send_to(self, t: int) -> dict[str, Tensor]:
        """All columns on the device, up to row t as they are now."""
        if self._packed is None:
            return {key: tensor(rows, self.device) for key, rows in self.rows.items()}
        for row in range(self._sent, t + 1):
            self._packed.send(row)
        self._sent = max(self._sent, t + 1)
        return self._packed.there

    def count_ended(self) -> int:
        """Number of rows, the last one left out, that ended an episode."""
        terminated, truncated = self.rows["terminated"][:-1], self.rows["truncated"][:-1]
        ended: Rows = terminated | truncated
        return int(ended.sum())

    def split(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Rows 0..T-1 and row T, as `columns`, on the device."""
        if self._parts is None or not self._shared:
            rows = self._send_to(len(self) - 1)
            self._parts = {k: v[:-1] for k, v in rows.items()}, {k: v[-1] for k, v in rows.items()}
        return self._parts
