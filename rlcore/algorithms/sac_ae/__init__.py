"""SAC-AE: keys and mathematics."""
