"""On-policy algorithms, which learn from rollouts: PPO, recurrent PPO and A2C, and the code that they share."""
