"""Size in bytes of a replay buffer's rows, and the chunk size of its checkpoints; this module does not import torch."""

from __future__ import annotations

import math

from rlcore.spec import ArraySpec, EnvSpec

LARGEST, SMALLEST = 32 << 20, 8 << 20  # bytes; limits of the size of a chunk, unless the buffer is small
PARTS = 32  # number of chunks of a buffer whose chunk size is between these limits
FEWEST = 8  # minimum number of chunks of a small buffer
PIECES = 16  # number of pieces of the last, unfinished chunk; a checkpoint rewrites less than one piece


def row_bytes(spec: EnvSpec) -> int:
    """Return the size in bytes of one time step of one environment in a replay buffer.

    It includes all observations, the action as the agent stores it, the reward and three flags.
    """
    return (
        sum(map(frame_bytes, spec.obs.values()))
        + spec.action.size * (8 if spec.action.agent_dtype == "int64" else 4)
        + 7
    )


def frame_bytes(part: ArraySpec) -> int:
    """Return the size in bytes of one observation of a key, not counting past frames that the agent also sees."""
    from numpy import dtype

    return math.prod(part.shape) * dtype(part.dtype).itemsize


def chunk_rows(size: int, slot: int) -> int:
    """Return the number of rows in each chunk into which checkpoints divide a replay buffer.

    `size` is the number of rows of each environment in the buffer. `slot` is the size in bytes of the data of all
    environments at one time step.
    """
    whole = size * slot
    wanted = min(LARGEST, max(whole // PARTS, min(SMALLEST, whole // FEWEST)))
    return max(1, wanted // max(1, slot))
