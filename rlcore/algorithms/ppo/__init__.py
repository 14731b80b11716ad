"""PPO: Proximal Policy Optimization Algorithms. Schulman, Wolski, Dhariwal, Radford, Klimov 2017, arXiv:1707.06347.

Read with:
    eq. 7, clipped surrogate L^CLIP     policy_loss        (dual clip: Ye et al. 2020, arXiv:1912.09729, eq. 5)
    eq. 9, value term (V - V_targ)²     value_loss         (clipping it is of the authors' code, not of the paper)
    eq. 9, whole objective              Learner.loss
    eq. 11-12, advantages               ActorCriticLearner.prepare, rlcore.functional.returns.gae
    algorithm 1                         Learner.update, after Training.collect has taken T steps of B actors

Departs from the paper:
    a truncated episode bootstraps from the value of its true last observation (the paper does not tell the two apart);
    advantages and returns are computed once a rollout; normalisation, annealing and `target_kl` are of later practice
    (Huang et al. 2022, "The 37 implementation details of PPO") and off unless the config asks.
"""

from rlcore.algorithms.ppo.config import Config
from rlcore.system.imports import later

__all__ = ["Config"]
__getattr__ = later("rlcore.algorithms.ppo.learner", "Agent", "Learner", "build")  # with torch
