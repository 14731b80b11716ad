"""Servers and workers of this machine, and what a flow run on one does besides."""
