"""Command-line interface `shepherd`."""
