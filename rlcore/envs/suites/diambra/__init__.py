"""DIAMBRA Arena's nine fighting games, over the protocol of their engine; no package of DIAMBRA's is needed."""
