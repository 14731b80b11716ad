"""Suites, which are families of environments: their ids, packages, and code to create, save and restore them."""
