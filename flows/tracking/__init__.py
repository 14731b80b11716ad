"""MLflow, TensorBoard and CSV: written from a run's event log (backends.py) by a separate process (mirror.py)."""
