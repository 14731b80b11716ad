"""MLflow, TensorBoard, CSV: made from a run's event log (backends.py), by a process of its own (mirror.py)."""
