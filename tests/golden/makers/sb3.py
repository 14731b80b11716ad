"""Environment and precision of Stable-Baselines3 for golden values."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from stable_baselines3.common import policies
from stable_baselines3.common.logger import Logger


class Blank(gymnasium.Env):
    """Environment with spaces that is never stepped."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def compute_in_float64() -> None:
    """Keep observations in float64, where SB3 casts them to float32, and ignore warnings about short minibatches."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*mini-batch.*")
    policies.preprocess_obs = lambda obs, *args, **kwargs: obs.double()


def without_log(model: Any) -> Any:
    """Return the model with a logger that writes nothing."""
    model.set_logger(Logger(None, []))
    return model
