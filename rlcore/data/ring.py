"""Ring buffers of named columns [slots, B, ...], in host memory, in files, or on a device.

A row has the data of all B environments at one time step. Rows are numbered from the start of the run, and row number t
is stored at index t % slots. The *place* of the data of environment b in row t is the integer t · B + b.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlcore.data.table import Form, Table, row_size

WIDE = (
    1024  # bytes; wider columns have their own tables; all others share a table, so that one access reads all of them
)


class Ring(Protocol):
    """Interface of a ring buffer with named columns [slots, B, ...].

    A row contains the values of all B environments at one time step. Rows are numbered from the start of the run, and
    row number t is stored at index t % slots. The values of environment b in row t have the place (integer) t · B + b.

    Attributes:
        form: column -> (shape, dtype) of the values of one environment in one row.
        slots: number of rows for which the buffer has space.
        width: B, number of environments.
    """

    form: Form
    slots: int
    width: int

    def write(self, row: int, count: int, columns: Mapping[str, Tensor], absent: Mapping[str, Any]) -> None:
        """Write `count` consecutive rows, starting at row number `row`.

        `columns` maps the name of a column to its values: [count, B, ...], or [B, ...] if `count` is 1. A column that
        is not in `columns` is filled with its value in `absent`, or with zeros if `absent` does not have it either.
        """
        ...

    def gather(self, places: np.ndarray, first: int, *cuts: slice | int) -> list[dict[str, Tensor]]:
        """Copy the values at `places` [..., T, N], and return one dict of columns for each element of `cuts`.

        A place is the integer t · B + b for row number t and environment b. All places must be in
        [first, first + slots · B).

        Each cut is a slice or an index of the dimension T. The dict of a cut contains only the values that the cut
        selects: column -> [..., T', N, *shape] for a slice of length T', and [..., N, *shape] for an index. `shape` is
        the shape of the column's values for one environment.
        """
        ...

    def put(self, places: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Overwrite the values at N places with `columns`: name -> [N, ...].

        `places` [N] are distinct integers t · B + b, for row number t and environment b.
        """
        ...

    def between(self, begin: int, end: int) -> dict[str, Tensor]:
        """Copy the rows from number `begin` up to and excluding `end`; return column -> [end - begin, B, ...]."""
        ...


def form_of(columns: Mapping[str, Tensor], lead: int) -> Form:
    """Return name -> (shape, dtype) of each column, without the first `lead` dimensions, such as [T, B]."""
    return {name: (tuple(value.shape[lead:]), value.dtype) for name, value in columns.items()}


def form_bytes(form: Form) -> int:
    """Return the number of bytes of one environment's values at one time step, summed over all columns."""
    return sum(row_size(shape, dtype) for shape, dtype in form.values())


def make_ring(form: Form, slots: int, width: int, device: torch.device, folder: Path | None) -> Ring:
    """Create a ring buffer of zeros on a device.

    If the device is the CPU and `folder` is given, the rows are stored in temporary files in this folder.
    """
    return HostRing(form, slots, width, folder) if device.type == "cpu" else DeviceRing(form, slots, width, device)


class HostRing:
    """Ring buffer in host memory, or in temporary files that are removed even if the process is killed.

    Args:
        form: column -> shape and dtype of the values of one environment at one time step.
        slots: number of rows for which the buffer has space.
        width: B, number of environments.
        folder: folder of the files. None: rows are in memory, which the system allocates when they are written.
    """

    def __init__(self, form: Form, slots: int, width: int, folder: Path | None = None) -> None:
        self.form, self.slots, self.width = form, slots, width
        self._filed = folder is not None
        narrow = [name for name in sorted(form) if row_size(*form[name]) < WIDE]
        groups = [narrow, *([name] for name in sorted(form) if name not in narrow)]
        self._tables = [Table({name: form[name] for name in group}, slots, width, folder) for group in groups if group]
        self._halves = [name for name, (_, dtype) in form.items() if dtype is torch.bfloat16]  # stored as int16
        self._columns = [(name, rows, form[name][1]) for table in self._tables for name, rows in table.columns.items()]

    def column(self, name: str) -> np.ndarray:
        """Return a column as an array [slots, B, ...], without a copy."""
        return next(rows for known, rows, _ in self._columns if known == name)

    def write(self, row: int, count: int, columns: Mapping[str, Tensor], absent: Mapping[str, Any]) -> None:
        """Write `count` consecutive rows, starting at row number `row` (see `Ring.write`)."""
        begin = row % self.slots
        end = begin + count
        for table in self._tables if self._filed else ():
            table.reserve(min(end, self.slots))
        for name, rows, dtype in self._columns:
            value = columns.get(name)
            array = absent.get(name, 0) if value is None else _array(value, dtype)
            if end <= self.slots:
                rows[begin:end] = array
            else:
                array = np.broadcast_to(array, (count, *rows.shape[1:]))
                rows[begin:], rows[: end - self.slots] = array[: self.slots - begin], array[self.slots - begin :]

    def gather(self, places: np.ndarray, first: int, *cuts: slice | int) -> list[dict[str, Tensor]]:
        """Copy the rows at `places` [..., T, N], one dict of columns for each of `cuts` (see `Ring.gather`)."""
        # `take(mode="wrap")` computes the index (place modulo slots · B) by repeated subtraction. If one subtraction is
        # enough, this takes an eighth of the time of a division.
        places = places - first // (self.slots * self.width) * (self.slots * self.width)
        found: list[dict[str, Tensor]] = [{} for _ in cuts]
        for table in self._tables:
            for part, columns in zip(found, table.take(places, cuts), strict=True):
                for name, column in columns:
                    part[name] = torch.from_numpy(column)
        for name in self._halves:
            for part in found:
                part[name] = part[name].view(torch.bfloat16)
        return found

    def put(self, places: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Overwrite the rows at `places` [N] with `columns`: name -> [N, ...]."""
        row, env = np.divmod(places % (self.slots * self.width), self.width)
        for name, rows, dtype in self._columns:
            if name in columns:
                rows[row, env] = _array(columns[name], dtype)

    def between(self, begin: int, end: int) -> dict[str, Tensor]:
        """Copy the rows from number `begin` up to and excluding `end`; return column -> [end - begin, B, ...]."""
        slots = np.arange(begin, end) % self.slots
        return {name: _tensor(rows[slots], dtype) for name, rows, dtype in self._columns}


class DeviceRing:
    """Ring buffer that stores each column as a tensor on a device. No method synchronizes with the device.

    Args:
        form: column -> shape and dtype of the values of one environment at one time step.
        slots: number of rows for which the buffer has space.
        width: B, number of environments.
        device: device of the tensors.
    """

    def __init__(self, form: Form, slots: int, width: int, device: torch.device) -> None:
        self.form, self.slots, self.width, self.device = form, slots, width, device
        self._columns = {
            name: torch.zeros((slots, width, *shape), dtype=dtype, device=device)
            for name, (shape, dtype) in sorted(form.items())
        }

    def write(self, row: int, count: int, columns: Mapping[str, Tensor], absent: Mapping[str, Any]) -> None:
        """Write `count` consecutive rows, starting at row number `row` (see `Ring.write`)."""
        begin = row % self.slots
        first = min(count, self.slots - begin)
        for name, rows in self._columns.items():
            value = columns.get(name)
            value = torch.as_tensor(absent.get(name, 0)) if value is None else value
            value = value.to(self.device, non_blocking=True).expand(count, *rows.shape[1:])
            rows[begin : begin + first], rows[: count - first] = value[:first], value[first:]

    def gather(self, places: np.ndarray, first: int, *cuts: slice | int) -> list[dict[str, Tensor]]:
        """Copy the rows at `places` [..., T, N], one dict of columns for each of `cuts` (see `Ring.gather`)."""
        return [self._select(places[..., cut, :]) for cut in cuts]

    def _select(self, places: np.ndarray) -> dict[str, Tensor]:
        index = self._index(places.ravel())
        return {
            name: rows.flatten(0, 1).index_select(0, index).view(*places.shape, *rows.shape[2:])
            for name, rows in self._columns.items()
        }

    def put(self, places: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Overwrite the rows at `places` [N] with `columns`: name -> [N, ...]."""
        index = self._index(places)
        for name, value in columns.items():
            rows = self._columns[name]
            rows.view(-1, *rows.shape[2:])[index] = value.to(self.device, rows.dtype, non_blocking=True)

    def between(self, begin: int, end: int) -> dict[str, Tensor]:
        """Copy the rows from number `begin` up to and excluding `end`; return column -> [end - begin, B, ...]."""
        slots = to_device(torch.arange(begin, end) % self.slots, self.device)
        return {name: rows[slots] for name, rows in self._columns.items()}

    def _index(self, places: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(places % (self.slots * self.width)), self.device)


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device asynchronously.

    A copy from the host to a GPU uses pinned memory, which torch does not free before the copy is complete.
    """
    if value.device.type == "cpu" and device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def _array(value: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Convert a tensor to a NumPy array whose values can be assigned to a column of type `dtype`.

    The dtype of the array can differ from `dtype`, because NumPy converts values in an assignment.
    """
    if dtype is torch.bfloat16:
        return value.to("cpu", dtype).view(torch.int16).numpy()
    try:
        return value.numpy()
    except TypeError:  # the tensor is on another device, or has type bfloat16
        return value.to("cpu", dtype).numpy()


def _tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor
