"""Dreamer V3, the paper of 2023."""
