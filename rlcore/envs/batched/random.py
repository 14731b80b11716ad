"""Random numbers of batched environments, computed on their device from a seed, an episode and a counter.

A number depends only on these three, so an environment gets the same numbers on every device, whatever other
environments are stepped together with it, and an episode starts the same in a resumed run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 divided by the golden ratio, as a signed integer
# GOLDEN is HIGH · 2^32 + LOW. Inductor computes products of constants exactly, and fails if they exceed 64 bits.
HIGH, LOW = GOLDEN >> 32, GOLDEN & ((1 << 32) - 1)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)


def mix(bits: Tensor) -> Tensor:
    """Hash 64-bit integers: the finalizer of SplitMix64 (Steele, Lea, Flood 2014, figure 17).

    torch multiplies int64 modulo 2^64, and shifts them arithmetically, so that the copied sign bits are removed.

    Args:
        bits: [...] int64.

    Returns:
        [...] int64; a bijection of the input.
    """
    bits = (bits ^ ((bits >> 30) & ((1 << 34) - 1))) * FIRST
    bits = (bits ^ ((bits >> 27) & ((1 << 37) - 1))) * SECOND
    return bits ^ ((bits >> 31) & ((1 << 33) - 1))


def episode_key(seed: Tensor, number: Tensor, episode: Tensor) -> Tensor:
    """Compute the keys of the random streams of episodes.

    Args:
        seed: seed of the run's stream, [B] int64.
        number: index of each environment, [B] int64.
        episode: number of its episode, [B] int64.

    Returns:
        The keys, [B] int64.
    """
    return mix(mix(seed + number * GOLDEN) + episode * GOLDEN)


@dataclass
class BatchedRandom:
    """Random stream of B environments, one for the current episode of each.

    The n-th number of an episode is `mix(key + n · GOLDEN)`, which is SplitMix64 with the seed `key`.

    Attributes:
        key: [B] int64, the seed of the episode.
        count: [B] int64, how many numbers the episode has used.
    """

    key: Tensor
    count: Tensor

    def bits(self, *shape: int) -> Tensor:
        """Draw uniform 64-bit integers, [B, *shape] int64."""
        number = math.prod(shape)
        place = self.count[:, None] + torch.arange(1, number + 1, device=self.key.device)
        self.count = self.count + number
        return mix(self.key[:, None] + (place * HIGH << 32) + place * LOW).view(-1, *shape)

    def uniform(
        self, low: float | Tensor, high: float | Tensor, *shape: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Draw uniform numbers in [low, high), [B, *shape], with 24 random bits in float32 and 53 in float64."""
        digits = 53 if dtype == torch.float64 else 24
        fraction = ((self.bits(*shape) >> (64 - digits)) & ((1 << digits) - 1)).to(dtype) * 2.0**-digits
        return low + (high - low) * fraction

    def fill(self, value: Tensor) -> Tensor:
        """Return a value [] for each environment, [B]; no random number is used."""
        return value.expand(self.key.shape).contiguous()

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw standard normal numbers, [B, *shape], by the method of Box and Muller (1958)."""
        first, second = self.uniform(0.0, 1.0, 2, *shape, dtype=torch.float64).unbind(1)
        return ((-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)).to(dtype)

    def integers(self, high: int | Tensor, *shape: int) -> Tensor:
        """Draw uniform integers from 0 to high - 1, [B, *shape] int64; `high` is at most 2^31."""
        return (((self.bits(*shape) >> 32) & ((1 << 32) - 1)) * high) >> 32
