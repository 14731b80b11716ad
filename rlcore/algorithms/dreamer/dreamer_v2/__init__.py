"""Dreamer V2: config and learner."""
