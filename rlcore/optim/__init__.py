"""Optimizers, eager and compiled."""
