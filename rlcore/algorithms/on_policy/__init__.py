"""Algorithms that learn from rollouts: PPO, recurrent PPO and A2C, and the parts that they share."""
