"""Target networks: copies of a trained module that follow it slowly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlcore.optim.flat import FlatParameters
from rlcore.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from rlcore.config.run import AlgorithmConfig
    from rlcore.types import Context


class Target:
    """Target network, updated by Polyak averaging: θ' ← θ' + τ (θ - θ') (Lillicrap et al. 2015, arXiv:1509.02971).

    Args:
        module: online network; the target network is a copy of it.
        context: provides device and precision of the target network.
    """

    # online: the online network; module: the copy, with parameters that do not require gradients

    def __init__(self, module: nn.Module, context: Context[AlgorithmConfig]) -> None:
        fabric, self.online = context.fabric, module
        self.module: Any = fabric.to_device(fabric.strategy.precision.convert_module(copy.deepcopy(module)))
        self.parameters = FlatParameters(self.module)
        self.module.requires_grad_(False)
        self._children = self._find_children()

    @torch.no_grad()
    def update(self, optimizer: Optimizer, tau: float | Tensor | Mapping[str, float | Tensor]) -> None:
        """Move the parameters of the target network by the fraction τ towards those of the online network.

        τ = 1 copies the parameters, and τ = 0 changes nothing. For a hard update every n steps, pass τ = 1 at every
        n-th step and τ = 0 at all other steps. If τ > 0, buffers are copied instead of averaged: a counter has no
        average, and the statistics of batch normalization are already running averages.

        Args:
            optimizer: optimizer that trains the online network, or a module that contains it.
            tau: τ, a number or a scalar tensor from 0 to 1; or name of a child module -> τ, for all child modules that
                have parameters, in their order in the module.
        """
        optimizer.parameters.gather()  # another optimizer may have changed some parameters
        slow, fast = self.parameters.vector, self._in_order(optimizer.parameters)
        taus = tau if isinstance(tau, Mapping) else {"": tau}
        places = self._children if isinstance(tau, Mapping) else {"": slice(None)}
        assert [*places] == [*taus], f"a τ is needed for {', '.join(places)}, not for {', '.join(taus)}"
        shares = {child: torch.as_tensor(tau, dtype=slow.dtype, device=slow.device) for child, tau in taus.items()}
        # A share that is a tensor is used even if it is 0, because reading its value would wait for the device.
        moved = {child: shares[child] for child, tau in taus.items() if isinstance(tau, Tensor) or tau}
        self.parameters.lerp(fast, [(at, moved.get(child)) for child, at in places.items()])
        for (name, mine), theirs in zip(self.module.named_modules(), self.online.modules(), strict=True):
            for key, value in theirs._buffers.items():  # pyright: ignore[reportPrivateUsage]
                if value is not None:
                    share = shares[""] if "" in shares else shares[name.partition(".")[0]]
                    mine._buffers[key] = torch.where(share > 0, value, mine._buffers[key])

    def _find_children(self) -> dict[str, slice]:
        """Return name -> slice of the parameter vector, for each child module of the target network."""
        firsts: dict[str, int] = {}
        for name, (start, _) in self.parameters.places.items():
            firsts.setdefault(name.partition(".")[0], start)
        ends = [*[*firsts.values()][1:], len(self.parameters.vector)]
        return {child: slice(start, end) for (child, start), end in zip(firsts.items(), ends, strict=True)}

    def copy(self) -> None:
        """Copy all parameters and buffers of the online network, for example after it has loaded other weights."""
        self.load_state_dict(dict(self.online.named_buffers()) | self.online.state_dict())

    def _in_order(self, trained: FlatParameters) -> Tensor:
        """Return the parameters of the online network as a vector, in the order of the target network's parameters.

        This is the vector `trained` of the optimizer, unless the optimizer has parameter groups, which change the
        order, or also trains other networks.
        """
        if trained.places == self.parameters.places:
            return trained.vector
        online = dict(self.online.named_parameters())
        return self.parameters.join(online[name] for name in self.parameters.places)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and all buffers of the target network, including non-persistent buffers."""
        return dict(self.module.named_buffers()) | self.module.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
        non_persistent = dict(self.module.named_buffers()).keys() - self.module.state_dict().keys()
        self.module.load_state_dict({name: value for name, value in state.items() if name not in non_persistent})
        for name in non_persistent & state.keys():  # non-persistent buffers follow the online network
            path, _, key = name.rpartition(".")
            buffers = self.module.get_submodule(path)._buffers
            buffers[key] = state[name].to(buffers[key]).clone()
