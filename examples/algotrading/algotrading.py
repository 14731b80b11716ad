"""Trading of one asset as a batched environment with action masks, and a transformer that reads past price changes.

    SHEPHERD_SEARCH_PATH=conf shepherd train exp=ppo_trading plugins=[algotrading]          # no memory
    SHEPHERD_SEARCH_PATH=conf shepherd train exp=ppo_trading_window plugins=[algotrading]   # MLP over 16 price changes
    SHEPHERD_SEARCH_PATH=conf shepherd train exp=ppo_trading_transformer plugins=[algotrading]
    SHEPHERD_SEARCH_PATH=conf shepherd train exp=ppo_trading_lstm plugins=[algotrading]

The price has a hidden trend, up or down, which changes sometimes. One price change says little about the trend, because
the noise is larger than the trend. An agent with memory can average over several changes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlcore.envs.batched.env import BatchedEnv, Obs, Transition

WAIT, BUY, SELL = range(3)


class Trading(BatchedEnv):
    """Trader that holds one unit of an asset or none; the return is the sum of its profits in percent."""

    observation_space = spaces.Dict(
        {
            "market": spaces.Dict({"change": spaces.Box(-np.inf, np.inf, (1,), np.float32)}),
            "holds": spaces.Box(0.0, 1.0, (1,), np.float32),
            "action_mask": spaces.Box(0, 1, (3,), np.int8),
        }
    )
    action_space = spaces.Discrete(3)
    max_episode_steps = 256

    @dataclass(frozen=True)
    class Config:
        """Trend and noise of a step in percent, probability that the trend changes, and fee of a trade in percent."""

        trend: float = 1.0
        noise: float = 2.0
        switch: float = 0.04
        fee: float = 0.5

    def reset(self, config: Any) -> Obs:
        """Start without the asset, in a random trend."""
        trend = torch.where(self.random.uniform(0.0, 1.0) < 0.5, 1.0, -1.0)
        self.state = {"trend": trend, "holds": torch.zeros_like(trend)}
        return self._obs(torch.zeros_like(trend))

    def step(self, action: Tensor) -> Transition:
        """Trade, then move the price."""
        config, held = self.config, self.state["holds"]
        holds = torch.where(action == BUY, 1.0, torch.where(action == SELL, 0.0, held))
        switches = self.random.uniform(0.0, 1.0) < config.switch
        trend = torch.where(switches, -self.state["trend"], self.state["trend"])
        change = config.trend * trend + config.noise * self.random.normal()
        self.state = {"trend": trend, "holds": holds}
        return self._obs(change), holds * change - config.fee * (holds - held).abs(), torch.zeros_like(switches)

    def _obs(self, change: Tensor) -> Obs:
        holds = self.state["holds"]
        allowed = torch.stack([torch.ones_like(holds), 1 - holds, holds], 1)  # it can buy or sell only one unit
        return {"market": {"change": change[:, None]}, "holds": holds[:, None], "action_mask": allowed.to(torch.int8)}


class Transformer(nn.Module):
    """Transformer over the window of price changes; the masks hide time steps before the start of the episode."""

    def __init__(self, obs_spec: dict[str, Any], action_spec: Any, units: int = 32, heads: int = 2) -> None:
        super().__init__()
        frames = obs_spec["market.change"].window.frames
        self.embed, self.position = nn.Linear(1, units), nn.Parameter(0.02 * torch.randn(frames, units))
        self.attention = nn.MultiheadAttention(units, heads, batch_first=True)
        self.norm, self.body = nn.LayerNorm(units), nn.Sequential(nn.Linear(units + 1, 64), nn.Tanh())
        self.value = nn.Linear(64, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return features [N, 64] and values [N]."""
        x = self.embed(obs["market.change"]) + self.position  # [N, frames, units]
        hidden = ~obs["market.change_valid"]
        attended, _ = self.attention(x[:, -1:], x, x, key_padding_mask=hidden, need_weights=False)
        newest = self.norm(x[:, -1] + attended[:, 0])
        features = self.body(torch.cat([newest, obs["holds"]], 1))
        return features, self.value(features).squeeze(1)
