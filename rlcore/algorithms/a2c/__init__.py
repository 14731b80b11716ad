"""A2C: keys and mathematics."""
