"""Objects of a user, such as stop conditions and callbacks: their creation, and their state in checkpoints.

The state of an object consists of its attributes, which must be JSON values, or of the result of its method
`state_dict`, which needs `load_state_dict` then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlcore.config.plugin_class import find_class, split_target
from rlcore.errors import RunError
from rlcore.system.torch_switches import keeping_switches
from rlcore.user_code import spell_error, user_code

State = dict[str, Any]


@contextmanager
def calling(name: str, kind: type[RunError] = RunError) -> Iterator[None]:
    """Context manager for calls of a user's code, after which torch's global settings are restored.

    Exceptions of the code become errors of the class `kind`, whose messages start with `name`.
    """
    try:
        with user_code(), keeping_switches():
            yield
    except Exception as error:
        raise kind(f"{name} {spell_error(error)}") from error


def create(stated: Mapping[str, Any], key: str) -> Any:
    """Create the object that a config describes by `_target_` and the arguments of the class; `key` is for messages."""
    return find_class(stated, key)(**split_target(stated)[1])


def read_state(instance: object, *, tensors: bool = False) -> State:
    """Return the state of a user's object.

    Args:
        instance: the object.
        tensors: True if the state may contain tensors and NumPy arrays too.

    Returns:
        The result of its method `state_dict`, or a copy of its attributes.

    Raises:
        TypeError: The state contains a value that a checkpoint cannot store, or cannot restore exactly.
    """
    get = getattr(instance, "state_dict", None)
    state = get() if get else dict(vars(instance)) if hasattr(instance, "__dict__") else {}
    if tensors:
        from rlcore.store.checkpoint import nested_state  # torch

        nested_state.encode(state)
        return state
    try:
        _refuse_inexact(state)
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"its state cannot be stored in a checkpoint ({error}); the attributes must be JSON values, or "
            "state_dict() and load_state_dict(state) must return and restore such values"
        ) from None


def restore_state(instance: object, state: Mapping[str, Any]) -> None:
    """Restore the state that `read_state` returned."""
    load = getattr(instance, "load_state_dict", None)
    if load:
        load(state)
    elif state:
        vars(instance).update(state)


def _refuse_inexact(state: Any) -> None:
    """Raise TypeError if JSON would return another type, for example a list in place of a tuple."""
    if type(state) is dict:
        for key, value in state.items():
            if type(key) is not str:
                raise TypeError(f"the key {key!r} of a dict is not text")
            _refuse_inexact(value)
    elif type(state) is list:
        for value in state:
            _refuse_inexact(value)
    elif state is not None and type(state) not in (bool, int, float, str):
        raise TypeError(f"{state!r} is a {type(state).__name__}")
