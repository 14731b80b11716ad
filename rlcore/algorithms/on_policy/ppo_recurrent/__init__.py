"""PPO with a recurrent agent: config and learner."""
