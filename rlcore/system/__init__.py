"""Operating system services: child processes that end with their parent, durable files, fast imports."""
