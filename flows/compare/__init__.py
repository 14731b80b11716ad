"""Statistical comparison of sides (groups of runs), with a verdict, pictures and an HTML page."""
