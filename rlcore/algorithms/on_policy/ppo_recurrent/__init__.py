"""PPO with a recurrent agent: config and learner."""

from rlcore.algorithms.on_policy.ppo_recurrent.config import Config

__all__ = ["Config"]
