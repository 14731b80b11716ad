"""Suites of environments: their ids, the extras that install them, and code to create, save and restore them."""
