"""Services of the operating system: children that end with their parent, durable files, quick imports."""
