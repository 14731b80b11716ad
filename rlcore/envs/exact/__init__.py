"""Exact saving and restoring of an environment."""
