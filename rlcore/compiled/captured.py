"""The parameters and buffers of modules as inputs of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from rlcore.functional.tree import leaves


class CapturedTensors:
    """Fast access to the current parameters and buffers of modules.

    The places of the tensors are located once, because torch's own traversal of the modules takes 40 µs. The attribute
    `names` contains the names of these tensors as parameters and buffers of `Reading`, the module that wraps a function
    and the modules that it reads.

    Args:
        modules: modules with a fixed structure; their parameters and buffers may be replaced. A tensor that several
            modules share is listed once.
        without: tensors to leave out.
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
                owner_tensors = owner._parameters if isinstance(tensor, nn.Parameter) else owner._buffers
                self._places.append((owner_tensors, key))

    def tensors(self) -> list[Tensor]:
        """Return every current tensor, detached, in the order of `names`."""
        return [owner_tensors[key].detach() for owner_tensors, key in self._places]

    def addresses(self) -> list[int]:
        """Return the memory address of each tensor.

        If the addresses have not changed, the result of an earlier `tensors()` that is still referenced is current.
        """
        return [owner_tensors[key].data_ptr() for owner_tensors, key in self._places]

    def own(self) -> list[Tensor]:
        """Return the tensors themselves, not detached, in the order of `names`."""
        return [owner_tensors[key] for owner_tensors, key in self._places]

    def replace(self, tensors: Mapping[int, Tensor]) -> None:
        """Replace tensors of the modules: index in `names` -> new tensor."""
        for index, tensor in tensors.items():
            owner_tensors, key = self._places[index]
            owner_tensors[key] = tensor


class Reading(nn.Module):
    """Module that wraps a function and the modules it reads, so that `call` can substitute their parameters."""

    def __init__(self, modules: nn.ModuleList, function: Callable[..., Any]) -> None:
        super().__init__()
        self.members, self.function = modules, function
        self.after: dict[str, Tensor] = {}  # buffers after the last call; the function may have replaced some

    def forward(self, *inputs: Any) -> Any:
        """Call the function."""
        returned = self.function(*inputs)
        self.after = dict(self.named_buffers())
        return returned

    def call(self, parts: Mapping[str, Tensor], inputs: Sequence[Any]) -> Any:
        """Call the function with other tensors as parameters and buffers, and restore the module's own afterwards.

        `functional_call` does not restore a parameter of a module that two others contain, because it replaces it
        twice. This method therefore restores all parameters itself.
        """
        owners: list[Any] = [*self.modules()]
        places = [(owner._parameters, {**owner._parameters}) for owner in owners]
        try:
            return functional_call(self, {**parts}, tuple(inputs))
        finally:
            for place, own in places:
                place.update(own)


def inputs_of(record: Any) -> list[Tensor]:
    """Return the tensors of a record as inputs of machine code: contiguous."""
    return [tensor.contiguous() for tensor in leaves(record)]


def layout(tensors: Sequence[Tensor]) -> list[Any]:
    """Return shape and dtype of each tensor; a compiled function supports only one layout."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
