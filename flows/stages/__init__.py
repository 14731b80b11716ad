"""The stages: plain functions of a run directory that write the same files for every caller.

Each file has one stage, `stage(run, ...)`, which returns small JSON values. Only flows/train.py defines their order.
"""
