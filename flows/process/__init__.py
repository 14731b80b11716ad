"""Processes, this one and those around it: signals, parents, locks, servers."""
