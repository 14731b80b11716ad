"""PPO: config and learner."""

from rlcore.algorithms.on_policy.ppo.config import Config

__all__ = ["Config"]
