"""Suites of environments: their ids, the extras that install them, and how they are made and saved."""
