"""Sweeps and groups: the trials of a sweep, the confirmation of its winner, and runs for several values of a key."""

WORKER = "flows.sweeps.sweep_worker"  # module of the worker processes that train for a sweep or a group
