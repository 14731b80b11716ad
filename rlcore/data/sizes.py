"""Sizes of a replay memory, known from the environment's spec before there is a row; free of torch."""

from __future__ import annotations

import math

from rlcore.spec import ArraySpec, EnvSpec

LARGEST, SMALLEST = 32 << 20, 8 << 20  # bytes of a chunk of a memory that is large enough
PARTS = 32  # chunks of a memory between the two
FEWEST = 8  # of a small one
PIECES = 16  # of the chunk that is not full yet: a checkpoint writes less than one of them twice


def row_bytes(spec: EnvSpec) -> int:
    """Bytes of one row of one environment: observations, action as an agent says it, reward and three flags."""
    return sum(map(frame_bytes, spec.obs.values())) + spec.action.size * (4 if spec.action.continuous else 8) + 7


def frame_bytes(part: ArraySpec) -> int:
    """Bytes of one observation of a key, without its past."""
    from numpy import dtype

    return math.prod(part.shape) * dtype(part.dtype).itemsize


def chunk_rows(size: int, slot: int) -> int:
    """Rows of a chunk, by the rows of the whole memory and the bytes that one of all environments takes."""
    whole = size * slot
    wanted = min(LARGEST, max(whole // PARTS, min(SMALLEST, whole // FEWEST)))
    return max(1, wanted // max(1, slot))
