"""Network that a user's code creates for `algo.model`: its creation, and checks of what its methods return."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlcore import plugins
from rlcore.config.values import INSTANCE
from rlcore.errors import UserError
from rlcore.functional.own_code import explaining
from rlcore.spec import ActionSpec, ArraySpec

KEY = "algo.model"
CarryState = dict[str, Tensor]  # name -> [N, ...]
OUTPUTS = ("logprob", "value")  # names that the agent already uses for its outputs


class Settings(NamedTuple):
    """Settings of an `OwnModel`.

    Attributes:
        model: value of `algo.model`: `package.module:Class`, or a module that is copied.
        arguments: value of `algo.model_config`: arguments of the class.
        recurrent: True if the algorithm needs a recurrent network, False if it needs a feed-forward one.
        clip: normalize vector keys by their running mean and std, and clip the result to ±`clip`; None = no
            normalization.
    """

    model: Any
    arguments: Mapping[str, Any]
    recurrent: bool
    clip: float | None


class OwnNetwork:
    """Network of the user, and calls of its methods that name the config key if they fail.

    Args:
        settings: the network and its arguments.
        obs_spec: observation key -> spec, for the keys that the network reads.
        action: spec of the environment's action.
        rng: the initial weights depend only on its seed. PyTorch's global CPU generator has this seed while the network
            is created.

    Attributes:
        net: the network.

    Raises:
        UserError: The network cannot be created, or it is recurrent and should not be, or the other way round.
    """

    net: nn.Module

    def __init__(
        self, settings: Settings, obs_spec: Mapping[str, ArraySpec], action: ActionSpec, rng: torch.Generator
    ) -> None:
        self.place = f"{KEY}={settings.model if isinstance(settings.model, str) else type(settings.model).__name__}"
        self.recurrent = settings.recurrent
        self.net = self._create(settings, obs_spec, action, rng)
        self._check_kind(self.net)

    def initial(self) -> CarryState:
        """Return the initial carry of one environment, name -> [1, ...]; {} for a feed-forward network."""
        if not self.recurrent:
            return {}
        ask: Any = self.net.initial
        carry = self._call("initial", ask, 1)
        tensors = carry if isinstance(carry, dict) else {}
        fits = tensors and all(isinstance(x, Tensor) and x.ndim and len(x) == 1 for x in tensors.values())
        if not fits or any(name in OUTPUTS for name in tensors):
            raise UserError(
                f"{self.place}: initial(1) must return the carry as a dict of name -> tensor [1, ...], with other "
                f"names than {' and '.join(OUTPUTS)}, but returned {_describe(carry)}"
            )
        return tensors

    def check(self, obs: Mapping[str, Tensor], carry: CarryState) -> int:
        """Call the network with two observations; return the number of features.

        Args:
            obs: key -> [2, ...]; example of two observations.
            carry: name -> [2, ...]; the initial carry (recurrent state); {} for a feed-forward network.

        Returns:
            Number of features.

        Raises:
            UserError: `forward` fails, or an output has a wrong shape.
        """
        given, wanted = (obs,), "features [2, F] and value [2]"
        if self.recurrent:
            given, wanted = (*given, carry), f"{wanted}, and the carry {_describe(carry)}"
        found = self._call("forward", self.net, *given)
        parts: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
        shapes = [tuple(part.shape) if isinstance(part, Tensor) else () for part in parts]
        fits = len(parts) == 2 + self.recurrent and len(shapes[0]) == 2 and shapes[0][0] == 2 and shapes[1] == (2,)
        if fits and self.recurrent:
            after = parts[2] if isinstance(parts[2], dict) else {}
            fits = {name: x.shape for name, x in after.items()} == {name: x.shape for name, x in carry.items()}
        if not fits:
            raise UserError(
                f"{self.place}: forward must return {wanted} for 2 observations, but returned {_describe(found)}"
            )
        return int(parts[0].shape[1])

    def _create(
        self, settings: Settings, obs_spec: Mapping[str, ArraySpec], action: ActionSpec, rng: torch.Generator
    ) -> nn.Module:
        if isinstance(settings.model, nn.Module):
            if settings.arguments:
                raise UserError(
                    f"{self.place} is an instance, so algo.model_config={dict(settings.arguments)} has no effect; give "
                    "either an instance, or the name of a class and algo.model_config"
                )
            return copy.deepcopy(settings.model)
        if settings.model.endswith(INSTANCE):
            raise UserError(
                f"{self.place}: the policy was trained with an object that a program passed, so it cannot be created "
                "from its files; train with algo.model=package.module:Class and algo.model_config instead"
            )
        own: Any = plugins.member(KEY, settings.model)
        if isinstance(own, type):  # before the constructor, which may need the inputs of the other kind
            self._check_kind(own)
        what = f"the constructor failed with algo.model_config={dict(settings.arguments)}"
        with self._explain(what), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.initial_seed())
            net = own(dict(obs_spec), action, **settings.arguments)
        if not isinstance(net, nn.Module):
            raise UserError(
                f"{self.place}: it must create a torch.nn.Module, but returned a {type(net).__name__}; name a subclass "
                "of torch.nn.Module, or a function that returns one"
            )
        return net

    def _check_kind(self, net: Any) -> None:
        """Raise UserError if a network, or its class, is recurrent and should not be, or the other way round."""
        if hasattr(net, "initial") == self.recurrent:
            return
        raise UserError(
            f"{self.place}: this algorithm needs a recurrent network, but it has no method `initial`; define "
            "initial(batch_size), which returns the carry (name -> tensor), or use exp=ppo"
            if self.recurrent
            else f"{self.place}: it has a method `initial`, so it is recurrent, but this algorithm needs a "
            "feed-forward network; use exp=ppo_recurrent, or rename the method"
        )

    def _call(self, name: str, function: Any, *given: Any) -> Any:
        """Call a method of the network on an example, without changing its state or torch's random state."""
        training = self.net.training
        self.net.eval()
        shapes = {key: [*x.shape] for key, x in given[0].items()} if name == "forward" else given[0]
        try:
            with self._explain(f"{name} failed for {shapes}"), torch.no_grad(), torch.random.fork_rng(devices=[]):
                return function(*given)
        finally:
            self.net.train(training)

    def _explain(self, what: str) -> AbstractContextManager[None]:
        """Return a context manager that converts errors of the network's code to a `UserError`."""
        return explaining(self.place, what, "correct the class or its arguments")


def _describe(value: Any) -> str:
    """Describe a nested value by the shapes of its tensors, for error messages."""
    if isinstance(value, Tensor):
        return str([*value.shape])
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_describe, value)) + ")"
    return type(value).__name__
