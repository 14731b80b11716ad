"""Environments: creation from the config, vectorization, and exact saving and restoring.

The package does not import torch.
"""
