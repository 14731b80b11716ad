"""The parameters and buffers of modules as inputs of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from rlcore.functional.tree import leaves


class CapturedTensors:
    """Fast access to the current parameters and buffers of modules.

    The modules are traversed once, in the constructor, because each traversal takes 40 µs. The attribute `names`
    contains the names that the tensors have in a `Reading` module that wraps these modules.

    Args:
        modules: modules with a fixed structure; their parameters and buffers may be replaced. A tensor that several
            modules share is listed once.
        without: parameters and buffers to exclude.
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
        """Return the current parameters and buffers, detached, in the order of `names`."""
        return [owner_tensors[key].detach() for owner_tensors, key in self._places]

    def addresses(self) -> list[int]:
        """Return the memory address of each parameter and buffer.

        As long as the addresses stay the same, an earlier result of `tensors()` can be used again.
        """
        return [owner_tensors[key].data_ptr() for owner_tensors, key in self._places]

    def own(self) -> list[Tensor]:
        """Return the current parameters and buffers without detaching them, in the order of `names`."""
        return [owner_tensors[key] for owner_tensors, key in self._places]

    def replace(self, tensors: Mapping[int, Tensor]) -> None:
        """Replace parameters and buffers of the modules; `tensors` maps an index in `names` to the new tensor."""
        for index, tensor in tensors.items():
            owner_tensors, key = self._places[index]
            owner_tensors[key] = tensor


class Reading(nn.Module):
    """Module that wraps a function and all modules that the function uses.

    `call` executes the function with other tensors in place of the parameters and buffers of these modules.
    """

    def __init__(self, modules: nn.ModuleList, function: Callable[..., Any]) -> None:
        super().__init__()
        self.members, self.function = modules, function
        self.after: dict[str, Tensor] = {}  # buffers after the last call; the function may have replaced some

    def forward(self, *inputs: Any) -> Any:
        """Call the wrapped function."""
        returned = self.function(*inputs)
        self.after = dict(self.named_buffers())
        return returned

    def call(self, parts: Mapping[str, Tensor], inputs: Sequence[Any]) -> Any:
        """Call the wrapped function with substituted parameters and buffers; the originals are restored afterwards.

        `functional_call` of torch does not restore the parameters of a submodule that two modules share, because it
        replaces them twice. This method therefore restores all parameters after the call.

        Args:
            parts: name of a parameter or buffer of this module -> tensor to use instead.
            inputs: arguments of the wrapped function.

        Returns:
            The result of the wrapped function.
        """
        owners: list[Any] = [*self.modules()]
        places = [(owner._parameters, {**owner._parameters}) for owner in owners]
        try:
            return functional_call(self, {**parts}, tuple(inputs))
        finally:
            for place, own in places:
                place.update(own)


def inputs_of(record: Any) -> list[Tensor]:
    """Return the tensors of a nested structure as a list of contiguous tensors, as machine code requires."""
    return [tensor.contiguous() for tensor in leaves(record)]


def layout(tensors: Sequence[Tensor]) -> list[Any]:
    """Return the shape and dtype of each tensor, to compare them with those a function was compiled for."""
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
