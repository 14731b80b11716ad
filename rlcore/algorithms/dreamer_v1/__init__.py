"""Dreamer V1."""
