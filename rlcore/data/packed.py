"""Storage of a rollout in which all fields of a time step are adjacent, so that one copy transfers them to a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16  # bytes; alignment of columns, sufficient for every dtype


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
