"""Dreamer V1: config and learner."""
