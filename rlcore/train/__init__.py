"""Training: the training loop, the session of a run, and the trainer process."""
