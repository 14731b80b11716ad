"""Named random streams, from which all random numbers in rlcore are drawn; no global generator is used.

A stream is identified by a seed, a purpose and indices. `numpy.random.SeedSequence` hashes them, so that the streams of
different seeds, environments and purposes are independent. Many libraries use the seed `seed + i` for environment i:
two runs with the seeds 0 and 1 then share the random numbers of all but one of their environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PURPOSES = {
    "env": 0,
    "env_eval": 1,
    "policy": 2,
    "prefill": 3,
    "minibatch": 4,
    "replay": 5,
    "init": 6,
    "augment": 7,
    "sweep": 8,
    "policy_eval": 9,
    "baseline": 10,
    "probe": 11,
    "loss": 12,
    "dataset": 14,
    "dream": 15,
    "callback": 16,
}


def sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """Return the NumPy seed sequence of a stream.

    `indices` distinguish streams of one purpose: for example rank, environment index or episode.
    """
    return np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose], *indices))


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a new PCG64 generator at the start of a stream."""
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, *indices)))


def integer(seed: int, purpose: str, *indices: int) -> int:
    """Return a 31-bit integer from a stream, as a seed for libraries (Gymnasium's reset, torch.Generator)."""
    return int(sequence(seed, purpose, *indices).generate_state(1, np.uint32)[0] >> 1)


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator as JSON values (Python integers of 128 bits)."""
    return dict(rng.bit_generator.state)


def load_generator_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Restore the state returned by `generator_state`."""
    rng.bit_generator.state = dict(state)
