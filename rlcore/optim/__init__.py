"""Optimizers, update rules (such as Adam) and target networks. Gradient steps run eagerly or as compiled code."""
