"""Many trainings of one question: a sweep's trials, the confirmation of its winner, a group of seeds."""

WORKER = "flows.sweeps.sweep_worker"  # the module of the processes that train for a sweep or a group
