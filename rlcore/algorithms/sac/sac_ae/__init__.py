"""SAC-AE: config and learner."""
