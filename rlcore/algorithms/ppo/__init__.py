"""PPO: keys and mathematics."""
