"""Decision whether the replay buffer of a run is on the GPU, if `buffer.on_device` is null.

The decision does not change any result, so a resumed run can decide again.
"""

from __future__ import annotations

import dataclasses

from rlcore.config.run import RunConfig
from rlcore.spec import EnvSpec
from rlcore.train.memory_estimate import TensorSizes, estimate

REPLAY = "replay memory"
RESERVE = 2 << 30  # bytes of GPU memory for activations and recorded functions, which the estimate does not include


def place_buffer(config: RunConfig, spec: EnvSpec, counted: TensorSizes | None, free: int | None) -> RunConfig:
    """Return a config in which `buffer.on_device` is not null.

    If it is null, the replay buffer is stored on the GPU if the memory of the run, with this buffer, fits there.

    Args:
        config: config of a run.
        spec: spec of its environment.
        counted: sizes of the algorithm's state (`rlcore.train.counting.count`); None: they are unknown.
        free: free memory in bytes of the GPU of agent and environments; None if one of them is not on a GPU.

    Returns:
        The config.
    """
    if config.buffer.on_device is not None:
        return config
    fits = False
    if free is not None and counted is not None and not counted.in_files:
        needed = estimate(config, spec, dataclasses.replace(counted, on_device=True)).device
        fits = REPLAY in needed and sum(needed.values()) + RESERVE <= free
    return dataclasses.replace(config, buffer=dataclasses.replace(config.buffer, on_device=fits))
