"""Parameters without a loss."""
