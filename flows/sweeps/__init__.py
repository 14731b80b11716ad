"""Many trainings of one question: a sweep's trials, the confirmation of its winner, a group of seeds."""
