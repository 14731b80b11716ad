"""Process management: signals, parent processes, lock files, network checks and exit codes."""
