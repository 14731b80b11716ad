"""Loggers that receive the points of a run one after another: Weights & Biases, and those of plugins.

A plugin registers a logger with `register_logger`, and `metric.logger.name` selects it (docs/write_a_logger.md). The
points come from the event log of the run. The mirror process (flows/tracking/mirror.py) sends them, so a logger neither
delays training nor can change it. `.logger/sent.json` in the run directory counts the points that were sent: a new
process, for example after a kill, continues there.

Files that can be written again, such as those of TensorBoard, are in backends.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from flows.process.locks import hold
from flows.tracking import wandb_run
from flows.tracking.news import NewEvents
from rlcore import plugins
from rlcore.config.groups import LoggerConfig
from rlcore.config.loggers import BUILT_IN, LOGGERS
from rlcore.config.values import at
from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.user_code import spell_error, user_code

COUNTED_EVERY = 200  # points; after a kill, at most so many are sent a second time


class Logger(Protocol):
    """Destination of a run's points. A logger may have an attribute `address`, a text for the user, such as a URL."""

    def log(self, policy_steps: int, values: Mapping[str, float], time: float) -> None:
        """Receive the values of metrics that were logged at the same moment.

        Args:
            policy_steps: number of policy steps.
            values: metric -> value.
            time: seconds since 1970.
        """
        ...

    def close(self, status: str | None) -> None:
        """Send everything that was received. The run can be continued later by a new logger.

        Args:
            status: how training ended, such as "finished" or "interrupted" (docs/event_log.md); None if it is not over.
        """
        ...


Factory = Callable[[RunDirectory, int], Logger]
_FACTORIES: dict[str, Factory] = {"wandb": wandb_run.WandbRun}
_OPEN: dict[str, OpenLogger] = {}  # folder of a run -> its logger in this process


def register_logger(name: str, factory: Factory) -> None:
    """Register a logger, so that a config can select it. A plugin calls this function when it is imported.

    Args:
        name: value of `metric.logger.name` that selects the logger.
        factory: class or function that creates the logger of a run. Its arguments are the directory of the run
            (`path`, `name`, `read_config()`) and the number of points that earlier loggers of this run have received:
            0 for a new run. `metric.logger.options` in the config has the settings of the logger.

    Raises:
        UserError: If another logger has this name.
    """
    present = _FACTORIES.get(name, factory)
    if name in BUILT_IN or _source(present) != _source(factory):  # equal if a module is imported again
        raise UserError(f"register_logger({name!r}): another logger has this name; choose another name")
    _FACTORIES[name] = factory
    LOGGERS.add(name)


def _source(factory: Factory) -> tuple[str, str]:
    return factory.__module__, getattr(factory, "__qualname__", repr(factory))


def check_logger(config: LoggerConfig, here: bool = True) -> None:
    """Raise UserError if the logger of a config cannot be used on this machine.

    If `here` is False, another machine will train the run, which may have the package and the API key.
    """
    if config.name == "wandb" and here:
        wandb_run.check(config.offline)


def has_logger(run: RunDirectory) -> bool:
    """Return True if a run has a logger that receives its points one after another."""
    return _receives_points(_name_of(run))


def address_of(run: RunDirectory) -> str | None:
    """Return the text with which the logger of a run tells the user where the data are, such as a URL, or None."""
    return _read_state(run).get("address")


def has_received_nothing(run: RunDirectory) -> bool:
    """Return True if a run has such a logger, but has sent no points, for example because a server did not answer."""
    return has_logger(run) and bool(at(run.read_config(), "metric.log_level")) and not _read_state(run)


def send_points(run: RunDirectory, last: bool = False) -> None:
    """Send new points of a run to its logger, unless the run has no such logger.

    Args:
        run: the run.
        last: close the logger, because this process will probably send no more points of this run.

    Raises:
        RunError: If the logger raised an exception. The next call creates a new logger.
    """
    name = _name_of(run)
    if name is None or not _receives_points(name):
        return
    key = str(run.path.absolute())
    with hold(run.path / ".logger" / "lock"):
        opened = _OPEN.pop(key, None)  # popped: after a failure, the next call creates a new logger
        if opened is None or opened.run_id != run.read_identity()["run_id"]:
            opened = OpenLogger(run, name)
        opened.send()
        if last:
            opened.close()
        else:
            _OPEN[key] = opened


class OpenLogger:
    """Logger of a run in this process, with the number of points that it has received.

    A point is all metrics that one event of the log contains. Points are numbered in the order of the log, which is the
    same in every process.

    Args:
        run: the run.
        name: name of the logger.
    """

    def __init__(self, run: RunDirectory, name: str) -> None:
        self.run, self.name, self.run_id = run, name, run.read_identity()["run_id"]
        state = _read_state(run)
        self._sent = state.get("sent", 0) if (state.get("logger"), state.get("run_id")) == (name, self.run_id) else 0
        self._read = 0  # number of points that `_news` has read
        self._news = NewEvents(run)
        self._logger: Logger | None = None

    def send(self) -> None:
        """Send the points that the logger has not received yet. Without such points, no logger is created."""
        self._news.read()
        if self._logger is None:
            count = self._read + sum(1 for moment in self._news.moments() if moment)
            if count <= self._sent:
                self._read = count
                return
            self._create()
            self._news, self._read = NewEvents(self.run).read(), 0
        logger = self._logger
        assert logger is not None
        for moment in filter(None, self._news.moments()):
            self._read += 1
            if self._read > self._sent:
                _, _, milliseconds, steps = moment[0]
                values = {name: value for name, value, *_ in moment}
                self._call(functools.partial(logger.log, steps, values, milliseconds / 1000))
                self._sent = self._read
                if self._sent % COUNTED_EVERY == 0:
                    self._write_state()
        self._write_state()

    def close(self) -> None:
        """Close the logger; it has then sent everything to its destination."""
        if (logger := self._logger) is not None:
            status = self._news.ended["status"] if self._news.ended else None
            self._call(lambda: logger.close(status))
            self._logger = None
            self._write_state()

    def _create(self) -> None:
        """Create the logger. If its destination has received fewer points than were sent, the rest is sent again."""
        factory = _factory(self.name)
        self._logger = self._call(lambda: factory(self.run, self._sent))
        received = getattr(self._logger, "received", None)
        self._sent = self._sent if received is None else min(self._sent, received)

    def _call(self, function: Callable[[], Any]) -> Any:
        """Call a function of the logger; raise RunError if it raises an exception."""
        try:
            with user_code():
                return function()
        except Exception as error:
            reason = str(error) if isinstance(error, RunError) else spell_error(error)
            raise RunError(f"logger {self.name}: {reason}") from error

    def _write_state(self) -> None:
        state = {"logger": self.name, "run_id": self.run_id, "sent": self._sent}
        present = _read_state(self.run)
        address = getattr(self._logger, "address", None) or present.get("address")
        content = state | ({"address": address} if address else {})
        if content != present:
            write_json(_state_file(self.run), content)


def _name_of(run: RunDirectory) -> str | None:
    return at(run.read_config(), "metric.logger.name")


def _receives_points(name: str | None) -> bool:
    """Return True if `metric.logger.name` selects a logger of this module or of a plugin."""
    return name is not None and (name in _FACTORIES or name not in BUILT_IN)


def _factory(name: str) -> Factory:
    """Return the factory of a logger. It may be registered by a plugin, which is then imported."""
    if name not in _FACTORIES:
        plugins.load()
    if name not in _FACTORIES:
        raise RunError(
            f"metric.logger.name={name}: no plugin that is named has registered this logger; set {plugins.VARIABLE}"
        )
    return _FACTORIES[name]


def _state_file(run: RunDirectory) -> Path:
    return run.path / ".logger" / "sent.json"


def _read_state(run: RunDirectory) -> dict[str, Any]:
    """Return the content of the file that counts the sent points; {} if it is missing or damaged."""
    with suppress(OSError, ValueError):
        found = json.loads(_state_file(run).read_text())
        return found if isinstance(found, dict) else {}
    return {}
