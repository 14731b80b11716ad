"""SAC: Soft Actor-Critic Algorithms and Applications. Haarnoja et al. 2018, arXiv:1812.05905; first arXiv:1801.01290.

Read with:
    eq. 5-6, soft Bellman residual J_Q      critic_loss, soft_target
    eq. 7-9, policy objective J_π           actor_loss
    eq. 18, temperature J(α)                alpha_loss
    appendix C, squashed normal             rlcore.functional.distributions.TanhNormal
    algorithm 1, gradient step              Learner.gradient_step
    algorithm 1, environment step           rlcore.train.collect, a row of every environment

Departs from the paper:
    actions are kept before the tanh, and the range of the environment's Box is left out of the log-probability;
    the loss of α is linear in log α, as the authors' code has it; rewards of n steps are those of `n_step` > 1;
    a truncated episode bootstraps from its true last observation (the paper does not tell the two apart).
"""

from rlcore.algorithms.sac.config import Config
from rlcore.system.imports import later

__all__ = ["Config"]
__getattr__ = later("rlcore.algorithms.sac.learner", "Agent", "Learner", "build")  # with torch
