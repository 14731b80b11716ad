"""Target networks: slowly updated copies of a trained module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlcore.optim.flat import FlatParameters
from rlcore.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from rlcore.types import Context


class Target:
    """Target network, updated by Polyak averaging: θ' ← θ' + τ (θ - θ') (Lillicrap et al. 2015, arXiv:1509.02971).

    Args:
        module: the online network, before training.
        context: provides the device and precision of the copy.
    """

    # online: the online network; module: the copy, with parameters that do not require gradients

    def __init__(self, module: nn.Module, context: Context) -> None:
        fabric, self.online = context.fabric, module
        self.module: Any = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(module)))
        self.parameters = FlatParameters(self.module)
        self.parameters.trained = False
        self.module.requires_grad_(False)
        self._children = self._find_children()

    @torch.no_grad()
    def update(self, optimizer: Optimizer, tau: float | Tensor | Mapping[str, float | Tensor]) -> None:
        """Move the target's parameters by the fraction τ towards those of the optimizer's module.

        `tau` is a number or scalar tensor from 0 to 1, or a mapping from the name of each child module to its τ, in the
        order of the children. τ = 1 copies the parameters, and τ = 0 changes nothing. A hard update every n steps is
        therefore τ = 1 at each n-th step and τ = 0 at the others.

        If τ > 0, buffers are copied instead of averaged: a counter has no average, and the statistics of batch
        normalization are already running averages.
        """
        optimizer.parameters.gather()  # another optimizer may have changed some parameters
        slow, fast = self.parameters.vector, self._in_order(optimizer.parameters)
        taus = tau if isinstance(tau, Mapping) else {"": tau}
        places = self._children if isinstance(tau, Mapping) else {"": slice(None)}
        assert [*places] == [*taus], f"a τ is needed for {', '.join(places)}, not for {', '.join(taus)}"
        shares = {child: torch.as_tensor(tau, dtype=slow.dtype, device=slow.device) for child, tau in taus.items()}
        parts = [(slow[at], fast[at], child) for child, at in places.items()]
        if self.parameters.traced:
            moved = [mine.lerp(theirs, shares[child]) for mine, theirs, child in parts]
            self.parameters.take(moved[0] if len(moved) == 1 else torch.cat(moved))
        else:
            for mine, theirs, child in parts:
                if isinstance(taus[child], Tensor) or taus[child]:  # do not wait for a value on the device
                    mine.lerp_(theirs, shares[child])
            self.parameters.to_module()
        for (name, mine), theirs in zip(self.module.named_modules(), optimizer.module.modules(), strict=True):
            for key, value in theirs._buffers.items():  # pyright: ignore[reportPrivateUsage]
                if value is not None:
                    share = shares[""] if "" in shares else shares[name.partition(".")[0]]
                    mine._buffers[key] = torch.where(share > 0, value, mine._buffers[key])

    def _find_children(self) -> dict[str, slice]:
        """Return, for each child module, the slice of the flat parameter vector that contains its parameters."""
        firsts: dict[str, int] = {}
        for name, (start, _) in self.parameters.places.items():
            firsts.setdefault(name.partition(".")[0], start)
        ends = [*[*firsts.values()][1:], len(self.parameters.vector)]
        return {child: slice(start, end) for (child, start), end in zip(firsts.items(), ends, strict=True)}

    def copy(self) -> None:
        """Copy the online network, for example after it has loaded other weights."""
        self.load_state_dict(dict(self.online.named_buffers()) | self.online.state_dict())

    def _in_order(self, trained: FlatParameters) -> Tensor:
        """Return the online parameters in the order of the target's parameters.

        The two orders can differ if the online network has parameter groups.
        """
        if trained.places == self.parameters.places:
            return trained.vector
        parts = trained.split(trained.vector)
        return self.parameters.join(parts[name] for name in self.parameters.places)

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers of the copy, including non-persistent buffers."""
        return dict(self.module.named_buffers()) | self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        non_persistent = dict(self.module.named_buffers()).keys() - self.module.state_dict().keys()
        self.module.load_state_dict({name: value for name, value in state.items() if name not in non_persistent})
        for name in non_persistent & state.keys():  # non-persistent buffers follow the online network
            path, _, key = name.rpartition(".")
            buffers = self.module.get_submodule(path)._buffers
            buffers[key] = state[name].to(buffers[key]).clone()
