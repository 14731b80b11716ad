"""Typed configuration of a run: schema, checks and groups of keys."""
