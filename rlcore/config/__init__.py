"""Typed configuration: the schema that checks it, and the groups."""
