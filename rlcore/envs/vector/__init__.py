"""Vectors of environments that are stepped together."""
