"""This process and those around it: signals, parents, locks, servers."""
