"""PPO: config and learner."""
