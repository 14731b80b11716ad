"""Callbacks in a config: their classes, which belong to plugins, and their arguments.

`rlcore.train.callbacks` has their base class, and `rlcore.train.callback_calls` calls them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.config.plugin_class import TARGET, find_class, read_class
from rlcore.config.stop import COMMON
from rlcore.config.values import nearest, spell
from rlcore.errors import Mistakes, UserError

KEY = "callbacks"
METHODS = ("on_iteration", "on_evaluation", "on_checkpoint", "on_end")
BASE = "rlcore.train.callbacks"  # module of the base class, whose methods do nothing
# Starts of the names of metrics that only the training logs.
RESERVED = ("Evaluation/", "Grads/", "Loss/", "Rewards/", "Test/", "Time/")


def read_callbacks(stated: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Check the callbacks of a config, and return each as a mapping with `_target_` and the arguments of the class.

    Args:
        stated: value of the config key: names `package.module:Class`, or mappings with `_target_` and arguments.

    Returns:
        The mappings.

    Raises:
        UserError: An entry has another form, is repeated, or names a class that is not part of a plugin, has none of
            the methods, or does not accept its arguments. The message lists all errors.
    """
    mistakes, callbacks = Mistakes(), list[dict[str, Any]]()
    for index, callback in enumerate(stated):
        with mistakes.catch():
            read = _read_callback(callback, f"{KEY}[{index}]")
            if read in callbacks:
                raise UserError(f"{KEY}[{index}]: is equal to {KEY}[{callbacks.index(read)}]; remove one of them")
            callbacks.append(read)
    mistakes.raise_collected()
    return tuple(callbacks)


def _read_callback(callback: Any, key: str) -> dict[str, Any]:
    stated = {TARGET: callback} if isinstance(callback, str) else callback
    if not isinstance(stated, Mapping) or TARGET not in stated:
        raise UserError(
            f"{key}={spell(callback)}: must be the name of a class, as my_module:MyCallback, or a mapping with "
            "arguments, as {_target_: my_module:MyCallback, every: 10}"
        )
    return read_class(stated, key, _check_class)


def _check_class(found: type, place: str) -> None:
    present = overridden_methods(found)
    if not present:
        own = next((name for name in dir(found) if name.startswith("on_") and name not in METHODS), "")
        hint = nearest(own, METHODS) if own else ""
        raise UserError(
            f"{place}: must be a class with at least one of the methods {', '.join(f'{m}(run)' for m in METHODS)}{hint}"
        )
    for name in present:
        try:
            inspect.signature(getattr(found, name)).bind(None, None)
        except TypeError:
            raise UserError(f"{place}: {name} must have the parameters (self, run)") from None


def overridden_methods(callback: type) -> tuple[str, ...]:
    """Return the names of the methods that a class of callbacks defines, in the order of `METHODS`."""
    found: dict[str, Callable[..., Any] | None] = {name: getattr(callback, name, None) for name in METHODS}
    return tuple(name for name, method in found.items() if callable(method) and method.__module__ != BASE)


def may_log(metric: str) -> bool:
    """Return True if callbacks may log a metric of this name, False if it is reserved for the training."""
    return bool(metric) and metric not in COMMON and not metric.startswith(RESERVED)


def mappings(stated: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the callbacks of a config that was built, which `read_callbacks` has converted to mappings."""
    return [callback for callback in stated if not isinstance(callback, str)]


def changing_callbacks(stated: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the callbacks of a config that may change training (class attribute `changes_training`)."""
    found = [(callback, find_class(callback, f"{KEY}[{i}]")) for i, callback in enumerate(mappings(stated))]
    return [callback for callback, cls in found if getattr(cls, "changes_training", False)]


def name_of(stated: Mapping[str, Any]) -> str:
    """Return the text by which the saved state of a callback is found again."""
    return json.dumps(stated, sort_keys=True)
