"""Networks and agents that several algorithm families share; the losses are in `rlcore.algorithms`."""
