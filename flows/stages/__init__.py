"""The stages: plain functions of a run directory that leave the same files whoever calls them.

Each file has one, `stage(run, ...) -> what it made` in small JSON. Their order is told in flows/train.py alone.
"""
