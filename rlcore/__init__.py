"""Algorithm core: environments, agents, learners, and the training loop that all algorithms share.

rlcore does not depend on Prefect, MLflow, DVC, Optuna or Hydra. Start with `types.py`, whose names are used everywhere.
"""

__version__ = "0.2.0"
