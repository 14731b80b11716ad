"""How an environment is saved and restored exactly."""
