"""Classes of plugins that a config names with their arguments, such as `{_target_: my_module:MyClass, times: 3}`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rlcore import plugins
from rlcore.errors import UserError

TARGET = "_target_"


def split_target(stated: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the class and the arguments of its constructor."""
    return str(stated[TARGET]), {str(name): value for name, value in stated.items() if name != TARGET}


def find_class(stated: Mapping[str, Any], key: str) -> type:
    """Import the class that a config names.

    Args:
        stated: `_target_`, `package.module:Class` or `package.module.Class`, and the arguments of the constructor.
        key: dotted key of the mapping, for messages.

    Returns:
        The class.

    Raises:
        UserError: The module is not part of a plugin, or the name is not that of a class.
    """
    target, _ = split_target(stated)
    found = plugins.member(f"{key}.{TARGET}", target)
    if not isinstance(found, type):
        raise UserError(f"{key}.{TARGET}={target}: must be a class, not a {type(found).__name__}")
    return found


def read_class(stated: Mapping[str, Any], key: str, check: Callable[[type, str], None]) -> dict[str, Any]:
    """Check that the class of a plugin is of the required kind, and that it accepts the arguments.

    Args:
        stated: as in `find_class`.
        key: dotted key of the mapping, for messages.
        check: called with the class and the text `key._target_=name`; raises UserError if the class is of another kind.

    Returns:
        The mapping with `_target_` first.

    Raises:
        UserError: The class is not part of a plugin, is of another kind, or does not accept the arguments.
    """
    target, arguments = split_target(stated)
    place = f"{key}.{TARGET}={target}"
    found = find_class(stated, key)
    check(found, place)
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise UserError(f"{place}: the class does not accept these arguments ({error})") from None
    return {TARGET: target, **arguments}
