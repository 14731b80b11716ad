"""Between environments and agents: what NumPy environments give becomes tensors, what others give stays where it is."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rlcore.types import Arrival, Rows, Steps

FLAGS = ("reward", "terminated", "truncated", "is_first")


def tensor(rows: Rows, device: torch.device | str) -> Tensor:
    """Rows of an arrival on a device; they share memory wherever they can."""
    return (torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows).to(device)


def answer(action: Tensor, arrival: Arrival) -> Rows:
    """An action in the environment's form as whoever sent the arrival takes it: NumPy, or on its device."""
    kept = arrival.reward
    return action.cpu().numpy() if isinstance(kept, np.ndarray) else action.to(kept.device)


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


def copied(arrival: Arrival) -> Arrival:
    """One that shares no memory with it."""
    return from_columns({k: v.copy() if isinstance(v, np.ndarray) else v.clone() for k, v in columns(arrival).items()})


def room(length: int, arrival: Arrival) -> dict[str, Rows]:
    """Storage for so many arrivals, [length, B, ...] each, where the arrival lies."""
    return {
        key: np.zeros((length, *rows.shape), rows.dtype)
        if isinstance(rows, np.ndarray)
        else rows.new_zeros((length, *rows.shape))
        for key, rows in columns(arrival).items()
    }
