"""A2C: Asynchronous Methods for Deep Reinforcement Learning. Mnih et al. 2016, arXiv:1602.01783. All actors at once.

Read with:
    algorithm S3, its two gradients     Learner.loss       (all actors' at once, from one rollout)
    section 4, entropy bonus β          `ent_coef`
    algorithm S3, R                     ActorCriticLearner.prepare with gae_lambda=1: the return of at most T steps

Departs from the paper:
    advantages are generalised (Schulman et al. 2016), as SheepRL has them: `gae_lambda` 0.95, 1 being the paper's;
    a truncated episode bootstraps from the value of its true last observation;
    the reference code's RMSProp is `algo.optimizer.name=rmsprop_tf`.
"""

from rlcore.algorithms.a2c.config import Config
from rlcore.system.imports import later

__all__ = ["Config"]
__getattr__ = later("rlcore.algorithms.a2c.learner", "Agent", "Learner", "build")  # with torch
