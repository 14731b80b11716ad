"""`shepherd`: the command line."""
