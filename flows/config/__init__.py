"""Composition of a checked config from command-line arguments and config files."""
