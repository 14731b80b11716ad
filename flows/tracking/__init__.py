"""Copies of a run's event log in MLflow, TensorBoard and CSV.

backends.py lists the backends; a separate process (mirror.py) writes them.
"""
