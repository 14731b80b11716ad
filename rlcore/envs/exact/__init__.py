"""Exact saving and restoring of environments, and tests that determine which method is exact for an environment."""
