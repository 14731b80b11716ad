"""Environments: creation from the config, vectorization, and exact saving and restoring. Does not import torch."""
