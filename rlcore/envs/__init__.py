"""Environments: made from the config, described, stepped together, saved and restored exactly. No torch in here."""
