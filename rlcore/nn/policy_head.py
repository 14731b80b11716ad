"""Policy head: the last layer of an actor, the policy distribution, and the conversion to environment actions."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from rlcore.errors import UserError
from rlcore.functional.distributions import Categoricals, Normal, Policy, TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.action_masks import Masks, masked_policy
from rlcore.nn.mlp import linear
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.spec import ActionSpec


class ActionHead(Protocol):
    """Interface of the last layer of an actor: an `nn.Module` that determines the actions' distribution and format."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the parameters [N, P] of the policy distribution for features x [N, F]."""
        ...

    def policy(self, parameters: Tensor, masks: Masks | None = None) -> Policy:
        """Return the distribution over actions that has the parameters [N, P] returned by `forward`.

        If `masks` are given, actions that they forbid have probability 0.
        """
        ...

    def noise(self, batch: int, rng: Noise | None) -> Tensor:
        """Draw the noise [batch, K] that the method `sample` of the policy distribution needs."""
        ...

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape], within the bounds of the space."""
        ...

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]; the inverse of `to_env`."""
        ...


class PolicyHead(nn.Module):
    """Linear layer that predicts the parameters of the policy distribution from features.

    Args:
        inputs: number of input features.
        action: action space of the environment.
        distribution: config key `distribution.type`, the policy distribution: auto, discrete, normal or tanh_normal.
        config: settings of the standard deviation of continuous actions, and of the initialization.
        rng: CPU generator for the initialization.
    """

    def __init__(
        self, inputs: int, action: ActionSpec, distribution: str, config: ActorConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        if action.parts:
            raise UserError(
                "this algorithm cannot choose the actions of a Dict or Tuple action space; use exp=ppo, exp=a2c or "
                "exp=ppo_recurrent, or rlcore.nn.composite_head.CompositeHead in your own agent"
            )
        self.action = action
        self.kind = kind_of(action, distribution)
        self.log_std_bound = config.log_std_bound if self.kind != "discrete" else None
        size = action.size if self.kind != "discrete" else sum(action.nvec)
        self.noise_size = size
        free_std = self.kind != "discrete" and not config.state_dependent_std
        predicted = size if self.kind == "discrete" or free_std else 2 * size
        self.linear = linear(inputs, predicted, rng, 0.01 if config.ortho_init else None)
        self.log_std = nn.Parameter(torch.full((size,), config.log_std_init)) if free_std else None
        if predicted == 2 * size and config.log_std_init:
            with torch.no_grad():
                self.linear.bias[size:] += config.log_std_init
        self.form = ActionForm(action, self.kind)

    def forward(self, x: Tensor) -> Tensor:
        """Return the parameters [N, P] of the policy distribution for features x [N, F].

        For discrete actions, the parameters are the logits. For continuous actions, they are the means, followed by the
        log stds.
        """
        parameters = self.linear(x.to(self.linear.weight.dtype))
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.to(parameters.dtype).expand_as(parameters)], -1)
        if (bound := self.log_std_bound) is not None:
            mean, log_std = parameters.chunk(2, -1)
            parameters = torch.cat([mean, bound * torch.tanh(log_std / bound)], -1)
        return parameters.to(x.dtype)

    def policy(self, parameters: Tensor, masks: Masks | None = None) -> Policy:
        """Return the distribution over actions that has the parameters [N, P] returned by `forward`.

        If `masks` are given, actions that they forbid have probability 0.
        """
        if masks is not None:
            return masked_policy(masks.spec, parameters, masks.obs)
        if self.kind == "discrete":
            return Categoricals(parameters, self.action.nvec)
        mean, log_std = parameters.chunk(2, -1)
        return TanhNormal(mean, log_std) if self.kind == "tanh_normal" else Normal(mean, log_std)

    def noise(self, batch: int, rng: Noise | None) -> Tensor:
        """Draw the noise that the method `sample` of the policy distribution needs, for a batch of actions.

        Return [batch, K] float32, on the device of the random stream `rng`: normal noise for continuous actions,
        exponential noise for discrete actions.
        """
        assert rng is not None, "sampling needs a stream; greedy actions do not"
        draw = rng.exponential if self.kind == "discrete" else rng.normal
        return draw(batch, self.noise_size)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape].

        The result has the dtype of the environment's action space and is within its bounds.
        """
        return self.form.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]; the inverse of `to_env`.

        The actions must be within the bounds of the action space. The result is int64 for discrete actions, otherwise
        float32.
        """
        return self.form.from_env(action)


class ActionForm:
    """Conversion between an agent's actions [B, A] and the environment's actions [B, *shape].

    Args:
        action: action space of the environment.
        kind: format of the agent's actions. "discrete": indices of choices, counted from 0. "normal": values in the
            environment's unit, which `to_env` clips to the bounds. "tanh_normal": values x that `to_env` maps to
            tanh(x), scaled from [-1, 1] to the bounds. "scaled": values in [-1, 1], which `to_env` scales to the
            bounds; dimensions with an infinite bound are not scaled.
    """

    def __init__(self, action: ActionSpec, kind: str) -> None:
        self.action, self.kind = action, kind
        # These tensors are not buffers of a module, because a conversion to bfloat16 would round the bounds.
        self._constants: dict[torch.device, tuple[Tensor, ...]] = {}
        self._stretches: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._fixed: dict[torch.device, tuple[Tensor, Tensor]] = {}
        # Lower and upper bounds of the elements that the agent sets.
        self._sides = [[side[i] for i in action.open] for side in (action.low, action.high)]
        self._has_closed = len(action.open) < len(action.low)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape].

        The result has the dtype of the environment's action space and is within its bounds.
        """
        if self.kind == "discrete" and not any(self.action.start):  # no constant tensor in a compiled trace
            return action.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)
        start, low, high = self._bounds(action.device)
        if self.kind == "discrete":
            values = action + start
        elif self.kind == "tanh_normal":
            values = low + (action.double().tanh() + 1) / 2 * (high - low)
        elif self.kind == "scaled":
            center, half = self._stretch(action.device)
            values = (center + action.double() * half).clamp(low, high)
        else:
            values = action.double().clamp(low, high)
        if self._has_closed:
            index, fixed = self._closed(action.device)
            values = fixed.expand(values.shape[0], -1).index_copy(1, index, values)
        return values.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]; the inverse of `to_env`.

        The actions must be within the bounds of the action space. The result is int64 for discrete actions, otherwise
        float32. With `kind="tanh_normal"`, an action on a bound would correspond to an infinite value; it is first
        moved inside the bounds by 1e-7 times half of their distance.
        """
        start, low, high = self._bounds(action.device)
        values = action.flatten(1) if action.ndim > 1 else action.unsqueeze(1)
        if self._has_closed:
            values = values.index_select(1, self._closed(action.device)[0])
        if self.kind == "discrete":
            return values.long() - start
        if self.kind == "normal":
            return values.float()
        if self.kind == "scaled":
            center, half = self._stretch(action.device)
            return ((values - center) / half).float()
        inside = (values - low) / (high - low) * 2 - 1
        return inside.clamp(-1 + 1e-7, 1 - 1e-7).atanh().float()

    def _bounds(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return three tensors: `start`, `low` and `high`.

        `start` [A] int64 contains the smallest values of discrete actions; it is empty for continuous actions. `low`
        and `high` [A] float64 contain the bounds of continuous actions; they are empty for discrete actions.
        """
        if device not in self._constants:
            start = torch.tensor(self.action.start, dtype=torch.int64, device=device)
            sides = (torch.tensor(side, dtype=torch.float64, device=device) for side in self._sides)
            self._constants[device] = (start, *sides)
        return self._constants[device]

    def _stretch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return, for each dimension, the center of the bounds and half of their distance, [A] float64 each.

        For a dimension with an infinite bound, the center is 0 and half of the distance is 1.
        """
        if device not in self._stretches:
            _, low, high = self._bounds(device)
            sides = zip(*self._sides, strict=True)
            bounded = torch.tensor([all(map(math.isfinite, pair)) for pair in sides], device=device)
            center = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
            self._stretches[device] = center, torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        return self._stretches[device]

    def _closed(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return two tensors for action spaces in which some elements have only one possible value (low = high).

        The agent's actions do not contain such elements. The first tensor [A] contains the indices of all other
        elements. The second tensor [1, elements] contains the lower bound of every element, which is the value of the
        elements with only one possible value.
        """
        if device not in self._fixed:
            fixed = torch.tensor([self.action.low], dtype=torch.float64, device=device)
            self._fixed[device] = torch.tensor(self.action.open, device=device), fixed
        return self._fixed[device]
