"""Policy as a function of named tensors, which torch.export can trace."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rlcore.errors import UserError
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.signature import Column
from rlcore.functional.tree import map_leaves, name_leaves
from rlcore.spec import ArraySpec

ROWS = 3  # batch size of the example; torch.export would treat a size of 1 as a constant


class GreedyPolicy(nn.Module):
    """Greedy actions of a policy as a function of named tensors.

    The function includes everything that the policy computes: the normalization of observations, action masks, frame
    stacks, and the conversion to the environment's actions. It has no state: the recurrent state (carry) is an input
    and an output. The tensors are those of `policy.signature`. An output gets the prefix `next_` if an input has the
    same name, as the tensors of the carry have, because names in an ONNX graph are unique.

    Args:
        policy: trained policy; the module contains a copy of its agent, without unused weights.

    Attributes:
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.

    Raises:
        UserError: If two inputs have the same name.
    """

    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]

    def __init__(self, policy: LoadedPolicy) -> None:
        super().__init__()
        signature = policy.signature
        names = [column.name for column in signature.inputs]
        if clash := [name for name in names if names.count(name) > 1]:
            raise UserError(f"obs: key {clash[0]!r} is also the name of another input; rename it in the environment")
        self.inputs = signature.inputs
        self.renamed = {c.name: f"next_{c.name}" if c.name in names else c.name for c in signature.outputs}
        self.outputs = tuple(dataclasses.replace(c, name=self.renamed[c.name]) for c in signature.outputs)
        self.obs_dtypes = {key: _dtype(policy.spec.obs[key]) for key in policy.obs_keys}
        self.carry = [column.name for column in signature.carry]
        self.form = policy.initial(1)
        self.acting = _without_unused_weights(policy.acting, lambda acting: self._answer(acting, example(policy)))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return name -> [N, ...] for all outputs; the argument is name -> [N, ...] for all inputs."""
        return self._answer(self.acting, inputs)

    def _answer(self, acting: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = inputs[self.inputs[0].name].shape[0]
        for tensor in inputs.values():
            torch._check(tensor.shape[0] == rows)  # pyright: ignore[reportPrivateUsage] - torch documents it
        carry, is_first = self.form, torch.ones(rows, dtype=torch.bool)
        if self.carry:
            left = iter([inputs[name] for name in self.carry])
            carry, is_first = map_leaves(lambda _: next(left), self.form), inputs["is_first"]
        obs = {key: inputs[key].to(dtype) for key, dtype in self.obs_dtypes.items()}
        carry, action, extras = acting.act(carry, obs, is_first, None, True)
        dtypes = {name: part.dtype for name, part in name_leaves(self.form).items()}
        found = {**extras, "action": acting.to_env(action)}
        found |= {name: part.to(dtypes[name]) for name, part in name_leaves(carry).items()}
        return {to: found[name] for name, to in self.renamed.items()}


def example(policy: LoadedPolicy, rows: int = ROWS) -> dict[str, Tensor]:
    """Return inputs of a `GreedyPolicy`, name -> [rows, ...]: example observations at the start of episodes."""
    arrays = {name: torch.from_numpy(array.repeat(rows, 0)) for name, array in policy.example().items()}
    if not policy.signature.carry:
        return arrays
    carry = {name: torch.from_numpy(array) for name, array in policy.initial_carry(rows).items()}
    return {**arrays, "is_first": torch.ones(rows, dtype=torch.bool), **carry}


def _dtype(spec: ArraySpec) -> torch.dtype:
    """Return the dtype in which an agent reads observations; it is that of `observations.to_batch`."""
    whole = np.dtype(spec.dtype).kind in "iu"
    return torch.int64 if spec.n is not None else getattr(torch, spec.dtype) if whole else torch.float32


class _Reads(TorchFunctionMode):
    """Context manager that records which tensors are arguments of functions of torch; `seen` has their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[int]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._see([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def _see(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self.seen.add(id(value))
            elif isinstance(value, (tuple, list, dict)):
                self._see(value.values() if isinstance(value, dict) else value)


def _without_unused_weights(acting: Any, call: Callable[[Any], Any]) -> nn.Module:
    """Copy an agent, and replace those of its parameters that `call`, a function of the agent, does not read by a zero.

    For example, the agent of a Dreamer contains the decoder of its world model, which no action depends on.
    """
    acting = copy.deepcopy(acting)
    with torch.no_grad(), _Reads() as reads:
        call(acting)
    for parameter in acting.parameters():
        if id(parameter) not in reads.seen:
            parameter.data = parameter.data.new_zeros(1)  # torch 2.11 warns about empty tensors when it loads a file
    return acting
