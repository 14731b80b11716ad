"""MLflow, TensorBoard and CSV: mirrors of the event log."""
