"""Training: the loop, the session of a run, and the process that owns it."""
