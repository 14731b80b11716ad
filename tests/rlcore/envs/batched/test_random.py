"""Random numbers of batched environments."""

from __future__ import annotations

import torch

from rlcore.envs.batched.random import BatchedRandom

# SplitMix64 with the seed 1234567, from the table of the Rosetta Code task "Pseudo-random numbers/Splitmix64".
PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def stream(*keys: int) -> BatchedRandom:
    return BatchedRandom(torch.tensor(keys), torch.zeros(len(keys), dtype=torch.int64))


def test_bits_equal_published_splitmix64() -> None:
    drawn = stream(1234567).bits(5)[0].tolist()
    assert [value % (1 << 64) for value in drawn] == PUBLISHED


def test_draws_continue_and_do_not_depend_on_other_copies() -> None:
    whole, parts, alone = stream(1, 2, 3), stream(1, 2, 3), stream(2)
    first = whole.uniform(0.0, 1.0, 6)
    assert torch.equal(first, torch.cat([parts.uniform(0.0, 1.0, 2), parts.uniform(0.0, 1.0, 4)], 1))
    assert torch.equal(first[1:2], alone.uniform(0.0, 1.0, 6))


def test_uniform_moments_and_bounds() -> None:
    for dtype in (torch.float32, torch.float64):
        values = stream(7).uniform(2.0, 4.0, 40_000, dtype=dtype)
        assert values.dtype == dtype
        assert 2 <= float(values.min()) < 2.001
        assert 3.999 < float(values.max()) < 4
        assert abs(float(values.mean()) - 3) < 4 * (1 / 3) ** 0.5 / 200  # four standard errors


def test_normal_moments() -> None:
    values = stream(7).normal(40_000)
    assert values.dtype == torch.float32
    assert abs(float(values.mean())) < 4 / 200
    assert abs(float(values.square().mean()) - 1) < 4 * 2**0.5 / 200
    assert abs(float((values.abs() < 1.96).double().mean()) - 0.95) < 0.005


def test_integers_cover_range_evenly() -> None:
    counts = stream(7).integers(5, 50_000)[0].bincount()
    assert len(counts) == 5
    assert float(((counts - 10_000).square() / 10_000).sum()) < 18.5  # χ² with 4 degrees of freedom, 0.1 %
