"""SAC: keys and mathematics."""
