"""The algorithm core: environments, agents, learners and the one loop that trains them.

Knows nothing of Prefect, MLflow, DVC, Optuna or Hydra. Read `types.py` first: its names are used everywhere.
"""

__version__ = "0.1.0"
