"""PPO with a recurrent agent."""
