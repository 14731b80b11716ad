"""Functions close to the operating system: child processes that end with their parent, durable files, fast imports."""
