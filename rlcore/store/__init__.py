"""Files of a run on disk: directory, event log, checkpoints, series, comparison."""
