"""From features to a policy over the environment's actions, and back to the environment's own form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import Categoricals, Normal, Policy, TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.mlp import linear
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.spec import ActionSpec


class PolicyHead(nn.Module):
    """Linear layer from features to policy parameters, and the distribution over them.

    Args:
        inputs: features in.
        action: the environment's action.
        distribution: `distribution.type`.
        config: spread and initialisation.
        rng: CPU generator for the initialisation.
    """

    def __init__(
        self, inputs: int, action: ActionSpec, distribution: str, config: ActorConfig, rng: torch.Generator
    ) -> None:
        super().__init__()
        self.action = action
        self.kind = kind_of(action, distribution)
        size = action.size if self.kind != "discrete" else sum(action.nvec)
        self.noise_size = size
        free_std = self.kind != "discrete" and not config.state_dependent_std
        predicted = size if self.kind == "discrete" or free_std else 2 * size
        self.linear = linear(inputs, predicted, rng, 0.01 if config.ortho_init else None)
        self.log_std = nn.Parameter(torch.full((size,), config.log_std_init)) if free_std else None
        if predicted == 2 * size and config.log_std_init:
            with torch.no_grad():
                self.linear.bias[size:] += config.log_std_init
        self._constants: dict[torch.device, tuple[Tensor, ...]] = {}  # no buffers: bfloat16 would round the bounds

    def forward(self, x: Tensor) -> Tensor:
        """[N, features] -> policy parameters [N, P] of the precision of x: logits, or means followed by log stds."""
        parameters = self.linear(x.to(self.linear.weight.dtype))
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.to(parameters.dtype).expand_as(parameters)], -1)
        return parameters.to(x.dtype)

    def policy(self, parameters: Tensor) -> Policy:
        """The distribution that [N, P] parameters describe."""
        if self.kind == "discrete":
            return Categoricals(parameters, self.action.nvec)
        mean, log_std = parameters.chunk(2, -1)
        return TanhNormal(mean, log_std) if self.kind == "tanh_normal" else Normal(mean, log_std)

    def noise(self, batch: int, rng: Noise | None) -> Tensor:
        """The noise [batch, K] that one `sample` uses, float32, on the stream's device."""
        assert rng is not None, "sampling needs a stream; greedy actions do not"
        draw = rng.exponential if self.kind == "discrete" else rng.normal
        return draw(batch, self.noise_size)

    def to_env(self, action: Tensor) -> Tensor:
        """Actions [B, A] -> [B, *shape] of the environment's dtype: started, squashed or clipped into the bounds."""
        if self.kind == "discrete" and not any(self.action.start):  # no constant in a trace, which serves any seed
            return action.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)
        start, low, high = self._bounds(action.device)
        if self.kind == "discrete":
            values = action + start
        elif self.kind == "tanh_normal":
            values = low + (action.double().tanh() + 1) / 2 * (high - low)
        else:
            values = action.double().clamp(low, high)
        return values.to(getattr(torch, self.action.dtype)).view(-1, *self.action.shape)

    def from_env(self, action: Tensor) -> Tensor:
        """[B, *shape] within the bounds -> the [B, A] that `to_env` makes it of: int64 indices, or float32.

        On the edge of a squashed action, which no finite one reaches, the largest that float32 tells from it.
        """
        start, low, high = self._bounds(action.device)
        values = action.flatten(1) if action.ndim > 1 else action.unsqueeze(1)
        if self.kind == "discrete":
            return values.long() - start
        if self.kind == "normal":
            return values.float()
        inside = (values - low) / (high - low) * 2 - 1
        return inside.clamp(-1 + 1e-7, 1 - 1e-7).atanh().float()

    def _bounds(self, device: torch.device) -> tuple[Tensor, ...]:
        """start [A] int64, low and high [A] float64; of the kind of action that there is."""
        if device not in self._constants:
            start = torch.tensor(self.action.start, dtype=torch.int64, device=device)
            sides = (torch.tensor(s, dtype=torch.float64, device=device) for s in (self.action.low, self.action.high))
            self._constants[device] = (start, *sides)
        return self._constants[device]
