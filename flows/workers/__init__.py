"""Prefect and MLflow servers, Prefect workers, and the environment in which flows run on them."""
