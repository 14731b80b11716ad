"""From what a user types to a checked config."""
