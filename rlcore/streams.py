"""Named random streams: every draw in rlcore comes from (seed, purpose, indices), never from a global generator.

Streams are mixed by `numpy.random.SeedSequence` (O'Neill's hash), so seeds 0 and 1, neighbouring environments and
different purposes share nothing, which `seed + i` cannot promise (Gymnasium's vector seeding shares B-1 of B streams
between seeds 0 and 1).
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
}


def sequence(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed sequence of one stream. indices: rank, env index, episode, ... as the purpose needs."""
    return np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose], *indices))


def generator(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh PCG64 generator at the start of one stream."""
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, *indices)))


def integer(seed: int, purpose: str, *indices: int) -> int:
    """One 31-bit integer of a stream, for libraries that take a seed (Gymnasium's reset, torch.Generator)."""
    return int(sequence(seed, purpose, *indices).generate_state(1, np.uint32)[0] >> 1)


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The state of a PCG64 generator as JSON values (Python integers of 128 bits)."""
    return dict(rng.bit_generator.state)


def load_generator_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Set a generator to a state from `generator_state`."""
    rng.bit_generator.state = dict(state)
