"""Run directories: creating, changing, training and comparing runs."""
