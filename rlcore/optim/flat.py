"""The parameters of a module as one vector, so that an optimizer's step is a handful of operations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LINE = 16  # numbers of float32 in a cache line: parameters are aligned as if each had memory of its own


class FlatParameters:
    """The parameters of a module, which become views into one `vector` [P].

    Where another `FlatParameters` has some of them already (two losses that train the same encoder), these stay where
    they are, and are copied into the vector before a step and back after it.

    Args:
        module: on its device and of its precision already.
    """

    # own: the parameters lie in `vector`; shared: another optimizer trains some of them too

    def __init__(self, module: nn.Module) -> None:
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.tensors = list(self.named.values())
        self.places: dict[str, tuple[int, torch.Size]] = {}
        size = 0
        for name, parameter in self.named.items():
            self.places[name] = (size, parameter.shape)
            size += math.ceil(parameter.numel() / LINE) * LINE
        first = self.tensors[0]
        assert all((p.dtype, p.device) == (first.dtype, first.device) for p in self.tensors)
        self.vector = torch.zeros(size, dtype=first.dtype, device=first.device)
        self._gaps = [self.vector.new_zeros(-p.numel() % LINE) for p in self.tensors]
        self.views = list(self.split(self.vector).values())
        owners: list[FlatParameters] = [owner for p in self.tensors if (owner := getattr(p, "flat_owner", None))]
        self.own, self.shared = not owners, bool(owners)
        for owner in owners:
            owner.shared = True
        self.gather()
        if self.own:
            for parameter, view in zip(self.tensors, self.views, strict=True):
                parameter.data, parameter.flat_owner = view, self  # pyright: ignore[reportAttributeAccessIssue]

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector, by parameter name."""
        return {name: vector[at : at + shape.numel()].view(shape) for name, (at, shape) in self.places.items()}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The vector of such parts, a new one; zero between them."""
        padded = [nn.functional.pad(part.reshape(-1), (0, -part.numel() % LINE)) for part in parts.values()]
        return torch.cat(padded)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The same of parts in the parameters' order, quicker where nothing is traced."""
        padded = (piece for pair in zip(parts, self._gaps, strict=True) for piece in (pair[0].reshape(-1), pair[1]))
        return torch.cat([*padded])

    @torch.no_grad()
    def gather(self) -> None:
        """Bring the vector up to date, before a step, with parameters that lie elsewhere."""
        for parameter, view in zip(self.tensors, self.views, strict=True):
            view.copy_(parameter)

    @torch.no_grad()
    def take(self, vector: Tensor) -> None:
        """Make these the parameters."""
        self.vector.copy_(vector)
        if not self.own:
            for parameter, view in zip(self.tensors, self.views, strict=True):
                parameter.data.copy_(view)


class Held:
    """The parameters and buffers of modules, read where they are now; torch's own walk over modules takes 40 µs.

    Their names are those that `rlcore.optim.function.Reading` gives them.

    Args:
        modules: whose structure no longer changes; what their parameters and buffers are, may.
        without: those that are left out; what several modules share is there once.
    """

    def __init__(self, modules: Sequence[nn.Module], without: Iterable[Tensor] = ()) -> None:
        self.names: list[str] = []
        self._places: list[tuple[dict[str, Tensor], str]] = []
        seen = {id(tensor) for tensor in without}
        for i, module in enumerate(modules):
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                path, _, key = name.rpartition(".")
                owner: Any = module.get_submodule(path)
                self.names.append(f"members.{i}.{name}")
                held = owner._parameters if isinstance(tensor, nn.Parameter) else owner._buffers
                self._places.append((held, key))

    def tensors(self) -> list[Tensor]:
        """They, detached, in the order of `names`."""
        return [held[key].detach() for held, key in self._places]
