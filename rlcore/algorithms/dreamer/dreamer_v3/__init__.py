"""Dreamer V3 (the paper's first version, 2023): config and learner."""
