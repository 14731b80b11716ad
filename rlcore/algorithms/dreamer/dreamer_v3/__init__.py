"""Dreamer V3, as in the first version of its paper (2023): config and learner."""
