"""Schema of configs: frozen dataclasses whose fields have help texts and allowed values.

`arg` defines a field: its default, a help text of one line, and its allowed values. `arguments` lists the fields for
`-h` and the documentation. `rlcore.config.build` builds a config from plain values.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlcore.config.values import plain, spell

REQUIRED = object()
METADATA = ("help", "choices", "low", "high", "above", "learning", "unused", "needs")  # set by `arg`


class Needs(NamedTuple):
    """Condition for a config key to have an effect: another key of the same group must have a suitable value.

    Attributes:
        key: name of the other key.
        holds: function that takes the value of the other key and returns True if the condition is met.
        words: text that follows the other key in an error message, for example "=true".
    """

    key: str
    holds: Callable[[Any], bool]
    words: str


def arg(
    default: Any = REQUIRED,
    help: str = "",
    *,
    choices: Collection[Any] | None = None,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    learning: bool = True,
    unused: str = "",
    needs: Needs | None = None,
) -> Any:
    """Define a field of a config dataclass.

    Args:
        default: the default; `REQUIRED` if the config must set the key. Mutable defaults are copied.
        help: one line for `-h` and the documentation, with unit and symbol.
        choices: allowed values, if they can be listed.
        low: smallest allowed value.
        high: largest allowed value.
        above: exclusive lower bound: the value must be greater than this.
        learning: True if the key affects what is learned. The value of such a key cannot be changed when a run resumes.
        unused: for a key that is accepted but has no effect, the reason; "" for all other keys.
        needs: condition for the key to have an effect. If it is not met, any value except the default is an error.

    Returns:
        A `dataclasses.field` with this metadata.
    """
    meta = {"help": help, "choices": choices, "low": low, "high": high, "above": above}
    meta |= {"learning": learning, "unused": unused, "needs": needs}
    if default is REQUIRED:
        return dataclasses.field(metadata=meta)
    if isinstance(default, (dict, list)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: _copy(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def other_default(cls: type, name: str, default: Any) -> Any:
    """Define a field again in a derived class with another default: same help text and allowed values as in `cls`.

    `name` is the name of the field in the config dataclass `cls`.
    """
    (field,) = (field for field in dataclasses.fields(cls) if field.name == name)
    if dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: default, metadata=field.metadata)
    return dataclasses.field(default=default, metadata=field.metadata)


def _copy(value: Any) -> Any:
    return value if dataclasses.is_dataclass(value) else type(value)(value)


@dataclass(frozen=True)
class Argument:
    """Description of one config key for `-h` and the documentation: its type, default, help text and allowed values."""

    key: str
    type: Any
    default: Any
    help: str = ""
    choices: Collection[Any] | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    learning: bool = True
    unused: str = ""
    needs: Needs | None = None
    group: str = ""

    @property
    def allowed(self) -> str:
        """Return a description of the allowed values, for example `one of auto, ddp` or `integer that is >= 1`."""
        if self.choices is not None:
            return "one of " + ", ".join(spell(c) for c in self.choices)
        limits = ((">", self.above), (">=", self.low), ("<=", self.high))
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        return f"{type_name(self.type)} that is {bounds}" if bounds else type_name(self.type)


def metadata(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the metadata of a field that `arg` has set; other metadata in a plugin's dataclass are ignored."""
    return {name: field.metadata[name] for name in METADATA if name in field.metadata}


def type_name(annotation: Any) -> str:
    """Describe a type annotation in the words of config files: `integer`, `number or null`, `list of text`."""
    names = {bool: "true/false", int: "integer", float: "number", str: "text", type(None): "null", Any: "anything"}
    names |= {list: "list", tuple: "list"}
    if annotation in names:
        return names[annotation]
    origin = typing.get_origin(annotation)
    args = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in args)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return f"list of {type_name(args[0])}"
        return "[" + ", ".join(type_name(a) for a in args) + "]"
    return "mapping"


def arguments(
    cls: type, prefix: str = "", learning: bool = True, group: str = "", values: Any = None
) -> Iterator[Argument]:
    """Yield a description of each key in a config dataclass and in its nested groups, in the order of the fields.

    Args:
        cls: the dataclass.
        prefix: dotted key of the dataclass in the config with a dot at its end, such as `env.`; "" for the root.
        learning: False if `cls` is in a group that does not affect learning.
        group: help text of the group that `cls` describes.
        values: instance of `cls` with the values that are reported as defaults; None: the defaults of the class.

    Yields:
        Descriptions of the keys. Groups are not included, but their keys are.
    """
    hints = types_of(cls)
    for field in dataclasses.fields(cls):
        here = learning and field.metadata.get("learning", True)
        default = default_of(field) if values is None else getattr(values, field.name)
        nested = nested_class(hints[field.name])
        if nested is None:
            meta: dict[str, Any] = {**metadata(field), "learning": here, "group": group}
            yield Argument(f"{prefix}{field.name}", hints[field.name], default, **meta)
        else:
            own = default if dataclasses.is_dataclass(default) else None
            yield from arguments(nested, f"{prefix}{field.name}.", here, field.metadata.get("help", ""), own)


def groups(cls: type, kind: type, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all groups of a certain class in a config dataclass.

    Groups are nested dataclasses. `kind` is the class of the groups or a base class of it, and `prefix` is put before
    each key.
    """
    hints = types_of(cls)
    for field in dataclasses.fields(cls):
        nested, place = nested_class(hints[field.name]), f"{prefix}{field.name}"
        if nested is not None:
            yield from (place,) if issubclass(nested, kind) else groups(nested, kind, f"{place}.")


@functools.cache
def types_of(cls: type) -> dict[str, Any]:
    """Return the types of a config dataclass's fields by name.

    The result is cached, because `get_type_hints` would otherwise take a third of the time to compose a config.
    """
    return typing.get_type_hints(cls)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a new copy of the default of a field, or `REQUIRED` if it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED


def nested_class(annotation: Any) -> type | None:
    """Return the dataclass in a type annotation, or None if there is none.

    The annotation of a group is the dataclass `X`, or `X | str` if the group can also be given as a single text.
    """
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


def defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a config dataclass as nested dicts.

    The value of a required key, which has no default, is `???` (OmegaConf's marker for a missing value).
    """
    hints = types_of(cls)
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        default, nested = default_of(field), nested_class(hints[field.name])
        if default is REQUIRED:
            default = "???" if nested is None else defaults(nested)
        tree[field.name] = default
    return plain(tree)
