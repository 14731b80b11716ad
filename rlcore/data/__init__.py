"""Rollouts, replay buffers, sampling, observation history, and reward scaling."""
