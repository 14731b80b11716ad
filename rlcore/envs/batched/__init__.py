"""Batched environments: B copies of an environment as one tensor program on the agent's device."""
