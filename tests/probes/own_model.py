"""Networks and action distributions as a user would write them, and broken ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlcore.envs.batched.env import BatchedEnv


class Net(nn.Module):
    """Feed-forward network for the key `state`."""

    def __init__(self, obs_spec: Any, action_spec: Any, units: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_spec["state"].size, units), nn.Tanh())
        self.policy, self.value = nn.Linear(units, units), nn.Linear(units, 1)

    def forward(self, obs: dict[str, Tensor]) -> Any:
        x = self.body(obs["state"])
        return self.policy(x).tanh(), self.value(x).squeeze(-1)


class Recurrent(nn.Module):
    """Recurrent network: an LSTM cell whose initial state is not zero."""

    def __init__(self, obs_spec: Any, action_spec: Any, units: int = 16) -> None:
        super().__init__()
        self.units, size = units, obs_spec["state"].size + obs_spec["past_action"].size
        self.cell, self.value = nn.LSTMCell(size, units), nn.Linear(units, 1)

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        return {name: torch.full((batch_size, self.units), 0.1) for name in ("h", "c")}

    def forward(self, obs: dict[str, Tensor], carry: dict[str, Tensor]) -> Any:
        h, c = self.cell(torch.cat([obs["state"], obs["past_action"]], -1), (carry["h"], carry["c"]))
        return h, self.value(h).squeeze(-1), {"h": h, "c": c}


def torch_module(obs_spec: Any, action_spec: Any) -> nn.Module:
    """Return a module of torch's own class, whose operations are those of this file."""
    net: Any = nn.Identity()
    net.forward = lambda obs: (obs["state"].tanh(), obs["state"].sum(-1))
    return net


class ColumnOfValues(Net):
    def forward(self, obs: dict[str, Tensor]) -> Any:
        features, value = super().forward(obs)
        return features, value.unsqueeze(-1)


class WithoutValue(Net):
    def forward(self, obs: dict[str, Tensor]) -> Any:
        return super().forward(obs)[0]


class OtherKey(Net):
    def forward(self, obs: dict[str, Tensor]) -> Any:
        return super().forward({"state": obs["position"]})


class OtherCarry(Recurrent):
    def forward(self, obs: dict[str, Tensor], carry: dict[str, Tensor]) -> Any:
        features, value, _ = super().forward(obs, carry)
        return features, value, {"h": carry["h"]}


class BareCarry(Recurrent):
    def initial(self, batch_size: int) -> Any:
        return torch.zeros(batch_size, self.units)


def not_a_module(obs_spec: Any, action_spec: Any) -> str:
    return "net"


class Laplace:
    """Laplace distribution: mean and log scale are predicted."""

    noise = "uniform"
    noise_size = staticmethod(lambda action_spec: action_spec.size)
    parameter_size = staticmethod(lambda action_spec: 2 * action_spec.size)

    def __init__(self, features: Tensor, model: nn.Module, action_spec: Any) -> None:
        self.mean, log_scale = features.chunk(2, -1)
        self.scale = log_scale.exp()

    def sample(self, noise: Tensor) -> Tensor:
        u = (noise - 0.5).clamp(-0.5 + 1e-7, 0.5 - 1e-7)
        return self.mean - self.scale * u.sign() * (1 - 2 * u.abs()).log()

    def mode(self) -> Tensor:
        return self.mean

    def logprob(self, action: Tensor) -> Tensor:
        return (-(action - self.mean).abs() / self.scale - (2 * self.scale).log()).sum(-1)

    def entropy(self) -> Tensor:
        return (1 + (2 * self.scale).log()).sum(-1)


class Choices:
    """Categorical distribution over allowed choices, by renormalized probabilities."""

    noise = "exponential"
    noise_size = staticmethod(lambda action_spec: action_spec.nvec[0])
    parameter_size = noise_size

    def __init__(self, features: Tensor, model: nn.Module, action_spec: Any, allowed: Tensor | None = None) -> None:
        p = features.softmax(-1) * (1 if allowed is None else allowed)
        self.p = p / p.sum(-1, keepdim=True)

    def sample(self, noise: Tensor) -> Tensor:
        return (self.p / noise.clamp(min=1e-30)).argmax(-1, keepdim=True)

    def mode(self) -> Tensor:
        return self.p.argmax(-1, keepdim=True)

    def logprob(self, action: Tensor) -> Tensor:
        return self.p.gather(-1, action).squeeze(-1).log()

    def entropy(self) -> Tensor:
        return torch.distributions.Categorical(probs=self.p, validate_args=False).entropy()


class Maze(BatchedEnv):
    """Four actions, of which one is forbidden at each step; a forbidden one gives a reward that is not finite."""

    observation_space = spaces.Dict(
        {"state": spaces.Box(-9, 9, (1,), np.float32), "action_mask": spaces.Box(0, 1, (4,), np.float32)}
    )
    action_space = spaces.Discrete(4)
    max_episode_steps = 12

    def reset(self, config: Any) -> dict[str, Tensor]:
        self.state = {"closed": self.random.integers(4), "place": self.random.uniform(-1.0, 1.0)}
        return self._obs()

    def step(self, action: Tensor) -> Any:
        forbidden = action == self.state["closed"]
        reward = torch.where(forbidden, torch.nan, (action - 1.5) * self.state["place"])
        self.state = {"closed": self.random.integers(4), "place": self.random.uniform(-1.0, 1.0)}
        return self._obs(), reward, torch.zeros_like(forbidden)

    def _obs(self) -> dict[str, Tensor]:
        mask = torch.arange(4, device=self.device) != self.state["closed"][:, None]
        return {"state": self.state["place"][:, None], "action_mask": mask.float()}


class LogprobWithoutScale(Laplace):
    def logprob(self, action: Tensor) -> Tensor:
        return super().logprob(action) + 0.1


class WideSamples(Laplace):
    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + 1.2 * (super().sample(noise) - self.mean)


class WrongEntropy(Laplace):
    def entropy(self) -> Tensor:
        return super().entropy() - math.log(1.1)


class RandomLogprob(Laplace):
    """Its log-probability differs between two calls, as with dropout."""

    def logprob(self, action: Tensor) -> Tensor:
        return super().logprob(action) + 0.1 * torch.rand(len(action))


class ScalarLogprob(Laplace):
    def logprob(self, action: Tensor) -> Tensor:
        return super().logprob(action).sum()


class OtherNoise(Laplace):
    noise = "gumbel"


class WithoutEntropy:
    noise, noise_size, parameter_size = "uniform", Laplace.noise_size, Laplace.parameter_size
    sample, mode, logprob = Laplace.sample, Laplace.mode, Laplace.logprob


class SignSGD(torch.optim.Optimizer):
    """Sign of the moving average of the gradient; the number of the step is not used."""

    def __init__(self, params: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                average.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                p.add_(average.sign(), alpha=-group["lr"])


class NormalizedSGD(SignSGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad / p.grad.norm(), alpha=-self.param_groups[0]["lr"])
