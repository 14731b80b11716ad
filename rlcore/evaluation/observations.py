"""Conversion of observations that a caller passes to a policy: numbers of any type, one observation or a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.errors import UserError
from rlcore.spec import ArraySpec


def join_keys(obs: Any) -> Any:
    """Return nested dicts of arrays as one dict, with keys joined by dots (`market.change`); other values unchanged."""
    if not isinstance(obs, Mapping):
        return obs
    given: Mapping[Any, Any] = obs
    flat = dict[str, Any]()
    for key, value in given.items():
        inner = join_keys(value)
        flat |= {f"{key}.{name}": part for name, part in inner.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def to_batch(given: Mapping[str, Any], specs: Mapping[str, ArraySpec]) -> tuple[dict[str, Tensor], bool]:
    """Convert observations to tensors.

    Args:
        given: observation key -> numbers, [*shape] or [N, *shape].
        specs: observation key -> spec, for the keys that the policy reads.

    Returns:
        Observation key -> tensor [N, *shape], and True if `given` is a single observation, so that N is 1.

    Raises:
        UserError: A key is missing, has another shape or dtype, or contains values that are not allowed; or the keys
            have different numbers of observations.
    """
    arrays = {key: _array(given, key, specs) for key in specs}
    single = [arrays[key].ndim == len(spec.shape) for key, spec in specs.items()]
    if any(single) != all(single):
        raise UserError(
            "obs: some keys have a batch dimension and others have none; give all keys, or none, a batch dimension"
        )
    batch = {key: torch.from_numpy(array[None] if single[0] else array) for key, array in arrays.items()}
    counts = {key: len(rows) for key, rows in batch.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key!r} has {count}" for key, count in counts.items())
        raise UserError(f"obs: the keys have different numbers of observations: {listed}; pass the same number for all")
    return batch, single[0]


def _array(given: Mapping[str, Any], key: str, specs: Mapping[str, ArraySpec]) -> np.ndarray:
    if key not in given:
        raise UserError(f"obs: key {key!r} is missing; expected {', '.join(specs)}")
    spec = specs[key]
    try:
        array = np.asarray(given[key])
    except ValueError:
        raise UserError(f"obs {key!r}: expected shape {spec.shape}, got lists of different lengths") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"obs {key!r}: expected numbers, got {array.dtype}")
    lead = array.ndim - len(spec.shape)
    if lead not in (0, 1) or array.shape[lead:] != spec.shape:
        batch = f"({', '.join(['N', *map(str, spec.shape)])})"
        raise UserError(f"obs {key!r}: expected shape {spec.shape} or {batch}, got {array.shape}")
    if spec.n is None and np.dtype(spec.dtype).kind in "iu":
        info = np.iinfo(spec.dtype)
        if not np.all((array == np.floor(array)) & (array >= info.min) & (array <= info.max)):
            raise UserError(f"obs {key!r}: expected whole numbers from {info.min} to {info.max}")
        return np.asarray(array, dtype=spec.dtype, order="C")
    if spec.n is None:
        with np.errstate(over="ignore"):
            array = np.asarray(array, dtype=np.float32, order="C")
        if not (finite := np.isfinite(array)).all():  # a null in JSON was converted to NaN
            where = tuple(map(int, np.argwhere(~finite)[0]))
            raise UserError(f"obs {key!r}: expected finite float32 numbers, got {array[where]} at {list(where)}")
        return array
    if not np.all((array == np.floor(array)) & (array >= spec.start) & (array < spec.start + spec.n)):
        raise UserError(f"obs {key!r}: expected whole numbers from {spec.start} to {spec.start + spec.n - 1}")
    return np.asarray(array, dtype=np.int64, order="C")  # ascontiguousarray would change shape [] to [1]
