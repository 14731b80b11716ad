from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from rlcore import streams

NAMES = [
    (seed, purpose, *indices)
    for seed, purpose in itertools.product((0, 1, 42), streams.PURPOSES)
    for indices in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    if indices
]


def test_streams_of_neighbouring_seeds_purposes_and_indices_share_no_draw() -> None:
    draws = [streams.generator(*name).random(200).tolist() for name in NAMES]
    everything = [x for part in draws for x in part]
    assert len(set(everything)) == len(everything)


def test_seeds_for_libraries_are_31_bits_and_hardly_ever_meet() -> None:
    seeds = [streams.integer(seed, "env", 0, index) for seed in range(20) for index in range(100)]
    assert all(0 <= s < 2**31 for s in seeds)
    # 2000 draws of 31 bits: 0.001 collisions expected.
    assert len(set(seeds)) == len(seeds)


def test_a_stream_is_the_same_every_time_and_never_changes() -> None:
    # Written down once: a change would make old runs impossible to reproduce.
    assert streams.integer(42, "env", 0, 3) == streams.integer(42, "env", 0, 3)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(42, spawn_key=(2, 0)))).random(4)
    assert (streams.generator(42, "policy", 0).random(4) == expected).all()


def test_purposes_have_numbers_of_their_own_and_an_unknown_one_is_an_error() -> None:
    assert len(set(streams.PURPOSES.values())) == len(streams.PURPOSES)
    assert [streams.PURPOSES[p] for p in ("env", "env_eval", "policy", "prefill", "minibatch")] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        streams.sequence(0, "no such purpose")


def test_generator_state_goes_through_json_and_continues() -> None:
    rng = streams.generator(7, "minibatch", 0)
    rng.standard_normal(3)
    rng.integers(0, 10, dtype=np.uint32)  # leaves half a draw in the generator's pocket
    state = json.loads(json.dumps(streams.generator_state(rng)))
    other = streams.generator(8, "policy")
    streams.load_generator_state(other, state)
    assert (rng.integers(0, 1000, 50, dtype=np.uint32) == other.integers(0, 1000, 50, dtype=np.uint32)).all()
    assert (rng.permutation(50) == other.permutation(50)).all()
