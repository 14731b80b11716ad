"""Files of a run on disk: run directory, event log, checkpoints, metric series, comparison of checkpoints."""
