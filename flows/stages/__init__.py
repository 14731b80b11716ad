"""The stages: functions that take a run directory and write the same files for every caller.

Each file contains one stage, `stage(run, ...)`, which returns small JSON values. Only flows/train.py defines the order
of the stages.
"""
