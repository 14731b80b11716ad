"""Output for people: sentences, tables, pictures and pages."""
