"""Dreamer V1, V2 and V3, and the world model, actor and losses that they share."""
