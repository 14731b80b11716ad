"""Training: `Trainer` trains a config, `RunTrainer` a run directory, and `TrainerServer` a run in its own process."""
