"""One run: collect, train, save, judge, and the process that does it."""
