"""Arrays in which a replay buffer stores rows: in memory, or in a temporary file that the system removes at the end."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcore.errors import DiskFault

Form = Mapping[str, tuple[tuple[int, ...], torch.dtype]]  # column -> shape and dtype of one row
RESERVED = 32 << 20  # bytes of disk space that each allocation adds


class Table:
    """Structured NumPy array [slots · B] with one field for each column, in memory or in a temporary file.

    An element of the array has the values of one environment at one time step.

    Args:
        form: column -> shape and dtype of the values of one environment at one time step.
        slots: number of time steps for which the array has space.
        width: B, number of environments.
        folder: folder of the file. None: the array is in memory, which the system allocates when elements are written.
    """

    def __init__(self, form: Form, slots: int, width: int, folder: Path | None) -> None:
        names = sorted(
            form, key=lambda name: (-form[name][1].itemsize, name)
        )  # largest dtype first, so that every field is aligned
        record = np.dtype([(name, numpy_type(form[name][1]), form[name][0]) for name in names])
        align = form[names[0]][1].itemsize
        pad = -record.itemsize % align
        record = np.dtype([*record.descr, ("/pad", f"V{pad}")]) if pad else record
        self._reserved, self._slot, self._whole = 0, width * record.itemsize, slots * width * record.itemsize
        self._file: int | None = None
        self.rows = np.zeros(slots * width, record) if folder is None else np.frombuffer(self._map(folder), record)
        self.columns = {name: self.rows.reshape(slots, width)[name] for name in names}

    def _map(self, folder: Path) -> mmap.mmap:
        """Create a temporary file in `folder` and return its memory map.

        The file has no name, so the system removes it even if the process is killed.
        """
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(self._whole)
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        return mmap.mmap(self._file, self._whole)

    def reserve(self, slots: int) -> None:
        """Allocate disk space for the first `slots` time steps of all environments.

        Raises DiskFault if the disk is full.

        Without this allocation, the system would kill the process (SIGBUS) when it writes to the memory map of a full
        disk.
        """
        if self._file is None or self._reserved >= slots * self._slot:
            return
        end = min(max(slots * self._slot, self._reserved + RESERVED), self._whole)
        try:
            os.posix_fallocate(self._file, self._reserved, end - self._reserved)
        except OSError as error:
            raise DiskFault(
                f"buffer.memmap: cannot allocate disk space for the replay buffer ({error.strerror or error})"
            ) from error
        self._reserved = end

    def take(self, places: np.ndarray, cuts: Sequence[slice | int]) -> Iterator[list[tuple[str, np.ndarray]]]:
        """Read the rows at `places` [..., T, N], and yield one list of (column name, array) for each element of `cuts`.

        Each cut is a slice or an index of the dimension T; its arrays contain only the rows that it selects. Places are
        indices of rows in the table; an index beyond the end wraps around to the start.
        """
        if len(self.columns) == 1:
            ((name, column),) = self.columns.items()
            flat = column.reshape(-1, *column.shape[2:])
            for cut in cuts:
                yield [(name, flat.take(places[..., cut, :], 0, mode="wrap"))]
            return
        out = np.empty(places.shape, self.rows.dtype)
        self.rows.take(places, out=out, mode="wrap")
        for cut in cuts:
            part = out[..., cut, :]
            yield [(name, part[name].copy()) for name in self.columns]


def numpy_type(dtype: torch.dtype) -> np.dtype:
    """Return the NumPy dtype for a torch dtype; int16 for bfloat16, which NumPy does not have."""
    return np.dtype("i2") if dtype is torch.bfloat16 else torch.empty(0, dtype=dtype).numpy().dtype


def row_size(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the size in bytes of one row of a column."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def scratch_folder(config: Any) -> Path:
    """Return the folder for temporary files of a replay buffer, from the config of a run.

    This is `buffer.memmap_dir` if it is set, else the run directory if it exists, else the temporary folder of the
    system.
    """
    if config.buffer.memmap_dir is not None:
        folder = Path(config.buffer.memmap_dir)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(config.run_dir) if Path(config.run_dir).is_dir() and config.run_dir else Path(tempfile.gettempdir())
