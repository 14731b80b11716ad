"""Composition of a run's config from command-line arguments and config files, and checks of its keys and values."""
