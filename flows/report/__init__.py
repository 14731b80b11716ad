"""Output for people: sentences, tables, pictures and HTML pages about runs and sweeps."""
