"""Network of the user, selected by `algo.model`: it replaces the encoder, the actor network and the critic network.

The class is called as `Net(obs_spec, action_spec, **model_config)`:

    obs_spec        observation key -> `rlcore.spec.ArraySpec`, for the keys that the config selects
    action_spec     `rlcore.spec.ActionSpec` of the environment
    model_config    the values of `algo.model_config`

    feed-forward    forward(obs) -> features [N, F], value [N]
    recurrent       forward(obs, carry) -> features [N, F], value [N], carry;  initial(batch_size) -> carry

`obs` is key -> [N, ...], or [N, frames, ...] for a key with a window (`ArraySpec.window`). The mask of a padded window
has the key `rlcore.spec.valid_key(key)`, [N, frames] bool. A recurrent network processes one time step; the agent loops
over time, and resets the carry (name -> [N, ...]) at the start of an episode.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore import plugins
from rlcore.config.values import INSTANCE
from rlcore.errors import UserError
from rlcore.functional.own_code import explaining
from rlcore.functional.scan import scan
from rlcore.functional.tree import map_leaves
from rlcore.nn.encoder import Normalizer
from rlcore.spec import ACTION, ActionSpec, ArraySpec, EnvSpec, Window, valid_key
from rlcore.types import Ranks

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


class OwnModel(nn.Module):
    """Network of the user, with the conversion of its inputs and outputs.

    Observations keep their dtype, except that floating-point ones are converted to the dtype of the network's weights.
    The outputs are float32.

    Args:
        settings: the network and its arguments.
        spec: observation and action spaces of the environment.
        keys: observation keys that the network reads.
        history: key -> window, for keys of which the network receives several time steps.
        rng: the initial weights depend only on its seed. PyTorch's global CPU generator has this seed while the network
            is created.

    Raises:
        UserError: The network cannot be created, its `forward` fails, or an output has a wrong shape.
    """

    def __init__(
        self,
        settings: Settings,
        spec: EnvSpec,
        keys: Sequence[str],
        history: Mapping[str, Window],
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        self.obs_spec = {key: replace(spec.obs[key], window=history.get(key)) for key in keys}
        self.place = f"{KEY}={settings.model if isinstance(settings.model, str) else type(settings.model).__name__}"
        self.recurrent = settings.recurrent
        if self.recurrent:
            self.obs_spec[ACTION] = ArraySpec((spec.action.flat_size,), "float32")
        self.padded = [key for key in self.obs_spec if key in history and history[key].padded]
        self.normalizers = nn.ModuleDict()
        for key, part in self.obs_spec.items():
            if settings.clip is not None and part.kind in ("vector", "goal") and part.n is None and key != ACTION:
                self.normalizers[key] = Normalizer(part.size, settings.clip)
        self.net = self._create(settings, spec.action, rng)
        names = list[str]()
        for name, value in self._ask_initial().items():
            self.register_buffer(f"initial_{name}", value.detach().clone(), persistent=False)
            names.append(name)
        self.names = tuple(names)
        self.output_size = self._check(history)

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return features [N, F] and values [N] of a feed-forward network for observations, key -> [N, ...]."""
        features, value = self.net(self._inputs(obs))
        return features.float(), value.float()

    def unroll(self, obs: Mapping[str, Tensor], forget: Tensor, carry: CarryState) -> tuple[Tensor, Tensor, CarryState]:
        """Process M sequences of L rows (time steps) with a recurrent network.

        Args:
            obs: key -> [L·M, ...], flattened in the order [L, M]. `past_action` [L·M, A] is the previous action, which
                is one-hot if it is discrete.
            forget: [L·M] bool; True for rows before which the carry (recurrent state) is reset.
            carry: name -> [M, ...]; carry before the first row of each sequence.

        Returns:
            Features [L·M, F], values [L·M], and the carry after the last row of each sequence.
        """
        count = len(carry[self.names[0]])
        xs = {"obs": self._inputs(obs), "forget": forget}
        rows = map_leaves(lambda x: x.unflatten(0, (-1, count)), xs)
        weights = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        initial = {name: getattr(self, f"initial_{name}") for name in self.names}
        carry, (features, value) = scan(self._step, carry, rows, {"weights": weights, "initial": initial})
        return features.flatten(0, 1).float(), value.flatten(0, 1).float(), carry

    def _step(
        self, carry: CarryState, xs: dict[str, Any], params: dict[str, Any]
    ) -> tuple[CarryState, tuple[Tensor, Tensor]]:
        started = {
            name: torch.where(xs["forget"].view(-1, *[1] * (part.ndim - 1)), params["initial"][name].to(part), part)
            for name, part in carry.items()
        }
        features, value, after = functional_call(self.net, params["weights"], (xs["obs"], started))
        return {name: after[name].to(part) for name, part in carry.items()}, (features, value)

    def initial(self, batch_size: int) -> CarryState:
        """Return the carry (recurrent state) at the start of an episode, name -> [B, ...]."""
        buffers = {name: getattr(self, f"initial_{name}") for name in self.names}
        return {name: value.expand(batch_size, *value.shape[1:]).clone() for name, value in buffers.items()}

    def observe(self, obs: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Include the observations [T, B, ...] of a rollout, from all ranks, in the statistics for normalization."""
        for key, normalizer in self.normalizers.items():
            rows = obs[key].float().flatten(0, 1).flatten(1)
            normalizer.update(rows, ranks.sum)  # pyright: ignore[reportCallIssue]

    def _inputs(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        dtype = next((p.dtype for p in self.net.parameters() if p.is_floating_point()), torch.float32)
        inputs: dict[str, Tensor] = {}
        for key, part in self.obs_spec.items():
            x = obs[key]
            if key in self.normalizers:
                lead = x.shape[: x.ndim - len(part.shape)]
                x = self.normalizers[key](x.reshape(*lead, -1).float()).reshape(x.shape)
                if key in self.padded:
                    x = x * obs[valid_key(key)].view(*obs[valid_key(key)].shape, *[1] * len(part.shape))
            inputs[key] = x.to(dtype) if x.is_floating_point() else x
        return inputs | {valid_key(key): obs[valid_key(key)] for key in self.padded}

    def _create(self, settings: Settings, action: ActionSpec, rng: torch.Generator) -> nn.Module:
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
        self.made_of = (own,)  # its code is part of the compiled functions, also if it is a function
        if isinstance(own, type):  # before the constructor, which may need the inputs of the other kind
            self._check_kind(own)
        what = f"the constructor failed with algo.model_config={dict(settings.arguments)}"
        with self._explain(what), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.initial_seed())
            net = own(dict(self.obs_spec), action, **settings.arguments)
        if not isinstance(net, nn.Module):
            raise UserError(
                f"{self.place}: it must create a torch.nn.Module, but returned a {type(net).__name__}; name a subclass "
                "of torch.nn.Module, or a function that returns one"
            )
        return net

    def _ask_initial(self) -> CarryState:
        """Return the initial carry of one environment, name -> [1, ...]; {} for a feed-forward network."""
        self._check_kind(self.net)
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

    def _check(self, history: Mapping[str, Window]) -> int:
        """Call the network with an example of two observations; return the number of features."""
        obs = {key: _example(part, history.get(key)) for key, part in self.obs_spec.items()}
        obs |= {valid_key(key): torch.ones(2, history[key].frames, dtype=torch.bool) for key in self.padded}
        given, wanted = (self._inputs(obs),), "features [2, F] and value [2]"
        carry = {name: part.detach() for name, part in self.initial(2).items()}
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


def _example(part: ArraySpec, window: Window | None) -> Tensor:
    """Return an example of two observations of a key: zeros, or the smallest value of a Discrete observation."""
    shape = (2, *((window.frames,) if window else ()), *part.shape)
    return torch.full(shape, part.start, dtype=getattr(torch, part.dtype))


def _describe(value: Any) -> str:
    """Describe a nested value by the shapes of its tensors, for error messages."""
    if isinstance(value, Tensor):
        return str([*value.shape])
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_describe(part)}" for name, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_describe, value)) + ")"
    return type(value).__name__
