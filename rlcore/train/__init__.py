"""Trainers: of a config, of a run directory, and the trainer process."""
