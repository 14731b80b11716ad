"""Dreamer V2."""
