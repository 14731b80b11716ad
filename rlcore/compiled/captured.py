"""The parameters and buffers of modules as inputs of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from rlcore.functional.tree import leaves


class CapturedTensors:
    """The parameters and buffers of modules, read where they are now; torch's own walk over modules takes 40 µs.

    Their names are those that `Reading` gives them.

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
        """Every tensor that is held, detached, in the order of `names`."""
        return [held[key].detach() for held, key in self._places]

    def addresses(self) -> list[int]:
        """Address of each tensor: where that is as it was, `tensors()` of then, if they are held, still are these."""
        return [held[key].data_ptr() for held, key in self._places]

    def own(self) -> list[Tensor]:
        """The tensors themselves, in the order of `names`."""
        return [held[key] for held, key in self._places]

    def replace(self, tensors: Mapping[int, Tensor]) -> None:
        """Put others in the places of some, by their index in `names`."""
        for index, tensor in tensors.items():
            held, key = self._places[index]
            held[key] = tensor


class Reading(nn.Module):
    """A function as a module around those it reads, so that `call` can exchange their parameters."""

    def __init__(self, modules: nn.ModuleList, function: Callable[..., Any]) -> None:
        super().__init__()
        self.members, self.function = modules, function
        self.after: dict[str, Tensor] = {}  # buffers after the last call, some of which the function may have replaced

    def forward(self, *inputs: Any) -> Any:
        """Call the function."""
        returned = self.function(*inputs)
        self.after = dict(self.named_buffers())
        return returned

    def call(self, parts: Mapping[str, Tensor], inputs: Sequence[Any]) -> Any:
        """Call it with others in the place of parameters and buffers, which are in their places again afterwards.

        `functional_call` leaves a plain tensor where a module is a part of two others: it was exchanged there twice.
        """
        owners: list[Any] = [*self.modules()]
        places = [(owner._parameters, {**owner._parameters}) for owner in owners]
        try:
            return functional_call(self, {**parts}, tuple(inputs))
        finally:
            for place, own in places:
                place.update(own)


def inputs_of(record: Any) -> list[Tensor]:
    """The tensors of a record as machine code takes them."""
    return [tensor.contiguous() for tensor in leaves(record)]


def layout(tensors: Sequence[Tensor]) -> list[Any]:
    """Shapes and types, which a compiled function is made for."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
