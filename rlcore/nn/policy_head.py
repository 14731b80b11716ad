"""Policy head: the last layer of an actor, the policy distribution, and the conversion to environment actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.functional.distributions import Categoricals, Normal, Policy, TanhNormal
from rlcore.functional.noise import Noise
from rlcore.nn.action_form import ActionForm
from rlcore.nn.mlp import linear
from rlcore.nn.network_keys import ActorConfig, kind_of
from rlcore.spec import ActionSpec


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
        self.form = ActionForm(action, self.kind)

    def forward(self, x: Tensor) -> Tensor:
        """Return the parameters [N, P] of the policy distribution for features x [N, F].

        For discrete actions, the parameters are the logits. For continuous actions, they are the means, followed by the
        log stds.
        """
        parameters = self.linear(x.to(self.linear.weight.dtype))
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.to(parameters.dtype).expand_as(parameters)], -1)
        return parameters.to(x.dtype)

    def policy(self, parameters: Tensor) -> Policy:
        """Return the distribution over actions that has the parameters [N, P] returned by `forward`."""
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
