"""Vectorized environments: B environments that are stepped together."""
