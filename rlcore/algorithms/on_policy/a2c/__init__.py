"""A2C: config and learner."""

from rlcore.algorithms.on_policy.a2c.config import Config

__all__ = ["Config"]
