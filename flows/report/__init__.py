"""What people read: sentences, tables, pictures."""
