"""Random numbers for agents and losses, drawn where they are used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore import streams

Draw = tuple[str, tuple[Any, ...]]  # kind of noise, and what its method takes: a shape, before which `bernoulli` has p
MANY = 1 << 14  # numbers from which torch's vectorised normal is the faster one
RARE = 1 / 64  # share of zeros up to which their distances are drawn, not they themselves


class Noise:
    """One named stream (`rlcore.streams`) on a device: the same numbers for a seed on every device of a kind.

    On the CPU NumPy's PCG64 is the whole state; other devices have a generator of their own beside it.

    Args:
        seed: the run's.
        purpose: a key of `rlcore.streams.PURPOSES`.
        *indices: rank, environment, round, ... as the purpose needs.
        device: where the numbers are to be.
    """

    def __init__(self, seed: int, purpose: str, *indices: int, device: torch.device | str = "cpu") -> None:
        self.host = streams.generator(seed, purpose, *indices)
        self.device = torch.device(device)
        self._device: torch.Generator | None = None
        if self.device.type != "cpu":
            words = streams.sequence(seed, purpose, *indices).generate_state(1, np.uint64)
            self._device = torch.Generator(self.device).manual_seed(int(words[0] >> 1))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, float32, [*shape] on the device."""
        if self._device is not None:
            return torch.empty(shape, device=self.device).normal_(generator=self._device)
        if math.prod(shape) < MANY:
            return torch.from_numpy(self.host.standard_normal(shape, dtype=np.float32))
        return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(int(self.host.integers(1 << 63))))

    def exponential(self, *shape: int) -> Tensor:
        """Standard exponential, float32, [*shape] on the device."""
        if self._device is not None:
            return torch.empty(shape, device=self.device).exponential_(generator=self._device)
        return torch.from_numpy(self.host.standard_exponential(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), float32, [*shape] on the device."""
        if self._device is not None:
            return torch.rand(shape, device=self.device, generator=self._device)
        return torch.from_numpy(self.host.random(shape, dtype=np.float32))

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """1 with a chance of p, in (0, 1), else 0; uint8, [*shape] on the device.

        No bool, of which compiled code reads one at a time: a seventh of DroQ's gradient step.
        """
        if self._device is not None:
            return (torch.rand(shape, device=self.device, generator=self._device) < p).to(torch.uint8)
        return torch.from_numpy(self._bytes(p, math.prod(shape)).reshape(shape))

    def _bytes(self, p: float, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if 1 - p > RARE:  # in a third of the time that as many uniform numbers take; p is rounded to 16 bits
            words = self.host.bit_generator.random_raw(-(-count // 4)).view(np.uint16)[:count]
            return (words < round(p * 2**16)).view(np.uint8)
        # From one zero to the next it is a geometric number of places: in a third of the time of the words.
        made, place = np.ones(count, np.uint8), -1
        while place < count:
            places = place + self.host.geometric(1 - p, int(1.1 * (count - place) * (1 - p)) + 16).cumsum()
            made[places[places < count]] = 0
            place = int(places[-1])
        return made

    def in_a_row(self, kind: str, count: int, shape: tuple[Any, ...]) -> Iterator[Tensor]:
        """`count` draws of a kind and shape, the numbers that as many calls give; where it pays, drawn at once."""
        if self._device is not None or kind == "bernoulli" or (kind == "normal" and math.prod(shape) >= MANY):
            return (getattr(self, kind)(*shape) for _ in range(count))
        draw = {"normal": self.host.standard_normal, "exponential": self.host.standard_exponential}
        drawn = draw.get(kind, self.host.random)((count, *shape), dtype=np.float32)
        return iter(torch.from_numpy(drawn).unbind(0))

    def state_dict(self) -> dict[str, Any]:
        """State of the stream."""
        device = {} if self._device is None else {self.device.type: self._device.get_state()}
        return {"host": streams.generator_state(self.host), **device}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; a KeyError where it is of another kind of device."""
        if set(state) != {"host"} | ({self.device.type} if self._device is not None else set()):
            raise KeyError(f"noise of {' and '.join(state)}, where it is drawn on {self.device.type}")
        streams.load_generator_state(self.host, state["host"])
        if self._device is not None:
            self._device.set_state(state[self.device.type].cpu())


class Recorder(Noise):
    """A stream, on a device, that remembers what was drawn from it."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(0, "probe", device=device)
        self.draws: list[Draw] = []

    def normal(self, *shape: int) -> Tensor:
        """Draw as any stream does, and remember it."""
        self.draws.append(("normal", shape))
        return super().normal(*shape)

    def exponential(self, *shape: int) -> Tensor:
        """Draw as any stream does, and remember it."""
        self.draws.append(("exponential", shape))
        return super().exponential(*shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw as any stream does, and remember it."""
        self.draws.append(("uniform", shape))
        return super().uniform(*shape)

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Draw as any stream does, and remember it."""
        self.draws.append(("bernoulli", (p, *shape)))
        return super().bernoulli(p, *shape)


def draw_all(noise: Noise | None, draws: Sequence[Draw]) -> list[Tensor]:
    """Noise of these kinds and shapes in their order, where there is a stream."""
    return [] if noise is None else [getattr(noise, kind)(*shape) for kind, shape in draws]


class Drawn:
    """Noise that has been drawn already, in the place of a stream."""

    def __init__(self, noise: Iterator[Tensor]) -> None:
        self.normal = self.exponential = self.uniform = lambda *shape: next(noise).view(shape)
        self.bernoulli = lambda p, *shape: next(noise).view(shape)
