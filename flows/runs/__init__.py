"""Run directories: made, changed, driven, compared."""
