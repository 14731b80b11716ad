"""DIAMBRA Arena's nine fighting games. The engine is used through its protocol, without DIAMBRA's packages."""
