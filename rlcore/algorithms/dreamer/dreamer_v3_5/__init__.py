"""Dreamer V3, as in Nature (2025): config, networks and learner."""
