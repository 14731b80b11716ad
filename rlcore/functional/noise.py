"""Random numbers for agents and losses, drawn from the run's named streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlcore import streams

Draw = tuple[str, tuple[Any, ...]]  # name of a method of `Noise` and its arguments
MANY = 1 << 14  # number of values from which torch's vectorized normal is faster than NumPy's
RARE = 1 / 64  # up to this probability of a zero, `bernoulli` draws the distances between zeros, not each value


class Noise:
    """Named random stream (`rlcore.streams`) that draws tensors on a device.

    Equal seeds result in equal numbers on all devices of the same type, but not on a CPU and a GPU. The state consists
    of the state of a NumPy PCG64 generator and, if the device is not the CPU, that of a torch generator.

    Args:
        seed: seed of the run.
        purpose: what the numbers are used for, a key of `rlcore.streams.PURPOSES`.
        *indices: integers that distinguish streams of the same purpose, such as the rank or an environment index.
        device: device of the drawn tensors.
    """

    def __init__(self, seed: int, purpose: str, *indices: int, device: torch.device | str = "cpu") -> None:
        self.host = streams.generator(seed, purpose, *indices)
        self.device = torch.device(device)
        self._device: torch.Generator | None = None
        if self.device.type != "cpu":
            words = streams.sequence(seed, purpose, *indices).generate_state(1, np.uint64)
            self._device = torch.Generator(self.device).manual_seed(int(words[0] >> 1))

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers, float32, [*shape]."""
        if self._device is not None:
            return torch.empty(shape, device=self.device).normal_(generator=self._device)
        if math.prod(shape) < MANY:
            return torch.from_numpy(self.host.standard_normal(shape, dtype=np.float32))
        return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(int(self.host.integers(1 << 63))))

    def exponential(self, *shape: int) -> Tensor:
        """Draw standard exponential numbers, float32, [*shape]."""
        if self._device is not None:
            return torch.empty(shape, device=self.device).exponential_(generator=self._device)
        return torch.from_numpy(self.host.standard_exponential(shape, dtype=np.float32))

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float32, [*shape]."""
        if self._device is not None:
            return torch.rand(shape, device=self.device, generator=self._device)
        return torch.from_numpy(self.host.random(shape, dtype=np.float32))

    def sort_keys(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float64, [*shape]; the `argsort` of a row is a random order."""
        return SortKeys(self.host, self.device).sort_keys(*shape)

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Draw 1 with probability p in (0, 1), otherwise 0; uint8, [*shape].

        The dtype is uint8 because compiled code is slow if it reads bools: it reads one value at a time. With bools,
        this would take a seventh of the time of a DroQ gradient step.
        """
        if self._device is not None:
            return (torch.rand(shape, device=self.device, generator=self._device) < p).to(torch.uint8)
        return torch.from_numpy(self._bytes(p, math.prod(shape)).reshape(shape))

    def _bytes(self, p: float, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if 1 - p > RARE:  # three times faster than uniform numbers; p is rounded to 16 bits
            words = self.host.bit_generator.random_raw(-(-count // 4)).view(np.uint16)[:count]
            return (words < round(p * 2**16)).view(np.uint8)
        # Distances between zeros are geometrically distributed. Drawing them is three times faster than drawing a
        # random word for each value.
        kept, place = np.ones(count, np.uint8), -1
        while place < count:
            places = place + self.host.geometric(1 - p, int(1.1 * (count - place) * (1 - p)) + 16).cumsum()
            kept[places[places < count]] = 0
            place = int(places[-1])
        return kept

    def in_a_row(self, kind: str, count: int, shape: tuple[Any, ...]) -> Iterator[Tensor]:
        """Return an iterator over `count` tensors, equal to those of `count` calls of the method `kind`, but faster.

        `kind` is "normal", "exponential", "uniform" or "bernoulli", and `shape` has the arguments of each call.
        """
        if self._device is not None or kind == "bernoulli" or (kind == "normal" and math.prod(shape) >= MANY):
            return (getattr(self, kind)(*shape) for _ in range(count))
        draw = {"normal": self.host.standard_normal, "exponential": self.host.standard_exponential}
        drawn = draw.get(kind, self.host.random)((count, *shape), dtype=np.float32)
        return iter(torch.from_numpy(drawn).unbind(0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the stream."""
        device = {} if self._device is None else {self.device.type: self._device.get_state()}
        return {"host": streams.generator_state(self.host), **device}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict`; raise KeyError if it is from another type of device."""
        if set(state) != {"host"} | ({self.device.type} if self._device is not None else set()):
            raise KeyError(
                f"the state of the random stream is for {' and '.join(state)}, but this stream draws on "
                f"{self.device.type}; use the same type of device as when it was saved"
            )
        streams.load_generator_state(self.host, state["host"])
        if self._device is not None:
            self._device.set_state(state[self.device.type].cpu())


class SortKeyStream(Protocol):
    """Random stream of sort keys: `SortKeys`, or in a CUDA graph the `Noise` of the recording."""

    def sort_keys(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float64, [*shape]."""
        ...


class SortKeys:
    """Random sort keys, drawn on a device from a generator of the host.

    Args:
        rng: generator that draws a seed for each call.
        device: device of the drawn tensors.
    """

    def __init__(self, rng: np.random.Generator, device: torch.device) -> None:
        self.rng, self.device = rng, device

    def sort_keys(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float64, [*shape]; the `argsort` of a row is a random order."""
        if self.device.type == "meta":  # has no generator; tests use it, because reading a tensor there is an error
            return torch.rand(shape, dtype=torch.float64, device=self.device)
        generator = torch.Generator(self.device).manual_seed(int(self.rng.integers(1 << 63)))
        return torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator)


class Recorder(Noise):
    """Random stream that records every draw in `draws`, so that the same noise can be drawn in advance by `draw_all`.

    A draw is recorded as a pair: name of the method, such as "normal", and its arguments.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(0, "probe", device=device)
        self.draws: list[Draw] = []

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers, float32, [*shape], and record the draw."""
        self.draws.append(("normal", shape))
        return super().normal(*shape)

    def exponential(self, *shape: int) -> Tensor:
        """Draw standard exponential numbers, float32, [*shape], and record the draw."""
        self.draws.append(("exponential", shape))
        return super().exponential(*shape)

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float32, [*shape], and record the draw."""
        self.draws.append(("uniform", shape))
        return super().uniform(*shape)

    def sort_keys(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float64, [*shape], and record the draw."""
        self.draws.append(("sort_keys", shape))
        return super().sort_keys(*shape)

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Draw 1 with probability p, otherwise 0, uint8, [*shape], and record the draw."""
        self.draws.append(("bernoulli", (p, *shape)))
        return super().bernoulli(p, *shape)


def draw_all(noise: Noise | None, draws: Sequence[Draw]) -> list[Tensor]:
    """Draw one tensor for each element of `draws`, in order; return [] if `noise` is None.

    A draw is a pair of a method name of `Noise`, such as "normal", and its arguments (the shape).
    """
    return [] if noise is None else [getattr(noise, kind)(*shape) for kind, shape in draws]


class Drawn:
    """Replacement of a `Noise` stream: its methods return tensors that were drawn in advance, one after the other."""

    def __init__(self, noise: Iterator[Tensor]) -> None:
        self.normal = self.exponential = self.uniform = self.sort_keys = lambda *shape: next(noise).view(shape)
        self.bernoulli = lambda p, *shape: next(noise).view(shape)
