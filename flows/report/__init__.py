"""Things that people read: sentences, tables, pictures."""
