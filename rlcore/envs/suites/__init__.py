"""Suites, which are families of environments: their ids, install extras, and code to create, save and restore them."""
