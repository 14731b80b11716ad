"""Crafter: a small Minecraft, seen from above."""
