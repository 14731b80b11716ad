"""Sweeps and groups of training runs.

A sweep is a search for good hyperparameters. It trains many trials and then confirms the best one (the winner) on new
seeds. A group is a set of runs, one for each of several values of a key, such as ten seeds.
"""

WORKER = "flows.sweeps.sweep_worker"  # module of the worker processes that train for a sweep or a group
