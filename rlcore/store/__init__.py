"""What of a run lies on disk: directory, event log, checkpoints, fingerprint."""
