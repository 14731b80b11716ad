"""Auto-regressive action distribution: the second sub-action depends on the first one (docs/your_own_model.md).

cd examples/autoregressive
shepherd train exp=ppo env=gym env.id=Pairs env.wrapper._target_=autoregressive.Pairs algo.total_steps=30_000 \
    algo.model=autoregressive:Net distribution.type=autoregressive:PairOfChoices "plugins=[autoregressive]"
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.functional import log_softmax

N = 5  # choices of each of the two sub-actions


class Pairs(gymnasium.Env[np.ndarray, np.ndarray]):
    """Reward 1 if the second sub-action is equal to the first one, shifted by a number that is observed."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.action_space = render_mode, spaces.MultiDiscrete([N, N])
        self.observation_space = spaces.Box(0.0, 1.0, (N,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.shift = 0, int(self.np_random.integers(N))
        return np.eye(N, dtype=np.float32)[self.shift], {}

    def step(self, action: np.ndarray) -> Any:
        reward = float((action[0] + self.shift) % N == action[1])
        self.steps, self.shift = self.steps + 1, int(self.np_random.integers(N))
        return np.eye(N, dtype=np.float32)[self.shift], reward, False, self.steps >= 16, {}


class Net(nn.Module):
    """Network with the layers of both sub-actions; the second one also receives the first sub-action."""

    def __init__(self, obs_spec: Any, action_spec: Any, units: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_spec["state"].size, units), nn.Tanh(), nn.Linear(units, units))
        self.first, self.value = nn.Linear(units, N), nn.Linear(units, 1)
        self.embed, self.second = nn.Embedding(N, units), nn.Linear(units, N)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = self.body(obs["state"]).tanh()
        return features, self.value(features).squeeze(-1)


class PairOfChoices:
    """log π(a₀, a₁ | s) = log π(a₀ | s) + log π(a₁ | s, a₀)."""

    noise = "exponential"
    noise_size = staticmethod(lambda action_spec: sum(action_spec.nvec))

    def __init__(self, features: Tensor, model: nn.Module, action_spec: Any) -> None:
        self.features, self.model, self.first = features, model, log_softmax(model.first(features), -1)

    def second(self, first: Tensor) -> Tensor:
        """Return the log-probabilities [..., N] of the second sub-action, given the first one [...]."""
        return log_softmax(self.model.second((self.features + self.model.embed(first)).tanh()), -1)

    def sample(self, noise: Tensor) -> Tensor:
        """Return actions [B, 2] from exponential noise [B, 2 N], by the Gumbel-max trick."""
        first = (self.first - noise[:, :N].log()).argmax(-1)
        return torch.stack([first, (self.second(first) - noise[:, N:].log()).argmax(-1)], -1)

    def mode(self) -> Tensor:
        first = self.first.argmax(-1)
        return torch.stack([first, self.second(first).argmax(-1)], -1)

    def logprob(self, action: Tensor) -> Tensor:
        parts = self.first, self.second(action[:, 0])
        return sum(p.gather(-1, action[:, i : i + 1]).squeeze(-1) for i, p in enumerate(parts))

    def entropy(self) -> Tensor:
        second = self.second(torch.arange(N, device=self.features.device).unsqueeze(-1))  # [N, B, N]
        of_second = -(second.exp() * second).sum(-1).T  # [B, N], for each first sub-action
        return (self.first.exp() * (of_second - self.first)).sum(-1)
