"""Crafter: a two-dimensional survival game similar to Minecraft."""
