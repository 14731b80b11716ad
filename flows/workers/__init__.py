"""Servers and workers of this machine, and the environment of the flow runs that workers execute."""
