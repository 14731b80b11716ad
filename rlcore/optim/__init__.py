"""Optimizers, update rules and target networks, which run eagerly or compiled."""
