"""Names of the loggers that `metric.logger.name` selects; a plugin adds its own."""

from __future__ import annotations

from collections.abc import Iterator

BUILT_IN = ("tensorboard", "csv", "wandb", "mlflow", "none")
OWN = "NAME (registered by your plugin)"


class LoggerNames:
    """Allowed values of `metric.logger.name`: the built-in loggers, and those that plugins have registered."""

    def __init__(self) -> None:
        self._registered: dict[str, None] = {}

    def __contains__(self, value: object) -> bool:
        """Return True if a value is the name of a logger."""
        return value in BUILT_IN or value in self._registered

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, and end with a text that stands for the loggers of plugins that are not imported."""
        yield from (*BUILT_IN, *self._registered, OWN)

    def __len__(self) -> int:
        """Return the number of elements of the iteration."""
        return len(BUILT_IN) + len(self._registered) + 1

    def add(self, name: str) -> None:
        """Add the name of a logger."""
        self._registered[name] = None


LOGGERS = LoggerNames()
