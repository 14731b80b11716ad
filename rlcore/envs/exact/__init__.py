"""Exact saving and restoring of environments, and the measurement of which method is exact."""
