"""The stages: plain functions (config, run directory) -> paths, called by tasks, commands and tests."""
