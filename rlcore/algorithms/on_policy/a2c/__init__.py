"""A2C: config and learner."""
