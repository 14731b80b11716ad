"""What the operating system is asked for: children that end with their parent, durable files, quick imports."""
