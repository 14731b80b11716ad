"""Evaluation of policies and world models: episodes, final evaluations, videos, and loading for inference."""
