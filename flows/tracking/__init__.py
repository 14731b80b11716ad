"""Copies of a run's metrics in MLflow, TensorBoard and CSV (the tracking backends), made from the run's event log.

backends.py lists the backends, and loggers.py has Weights & Biases and the loggers of plugins. A separate process
(mirror.py) copies the event log to them during training.
"""
