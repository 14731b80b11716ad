"""Sizes of a replay buffer, computed from the environment's spec without importing torch."""

from __future__ import annotations

import math

from rlcore.spec import ArraySpec, EnvSpec

LARGEST, SMALLEST = 32 << 20, 8 << 20  # bytes; range of chunk sizes, unless the buffer is small
PARTS = 32  # number of chunks between these limits
FEWEST = 8  # minimum number of chunks of a small buffer
PIECES = 16  # pieces of the unfinished chunk; a checkpoint rewrites less than one piece


def row_bytes(spec: EnvSpec) -> int:
    """Return the bytes of a row of one environment: observations, action in the agent's form, reward, three flags."""
    return sum(map(frame_bytes, spec.obs.values())) + spec.action.size * (4 if spec.action.continuous else 8) + 7


def frame_bytes(part: ArraySpec) -> int:
    """Return the bytes of one observation of a key, without its window."""
    from numpy import dtype

    return math.prod(part.shape) * dtype(part.dtype).itemsize


def chunk_rows(size: int, slot: int) -> int:
    """Return the rows of a chunk. `size`: rows of the buffer; `slot`: bytes of a row of all environments."""
    whole = size * slot
    wanted = min(LARGEST, max(whole // PARTS, min(SMALLEST, whole // FEWEST)))
    return max(1, wanted // max(1, slot))
