"""DIAMBRA Arena's nine fighting games. The engine is used through its gRPC service, without DIAMBRA's packages."""
