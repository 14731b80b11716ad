"""Strict conversion of nested mappings to config dataclasses, with checks of keys, types and bounds.

The values are from Hydra, from the config file of a run or from Python code. Errors are of type `UserError`; their
message has the key, the value, the allowed values, and a similar key if there is one. No value causes an import.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from rlcore.config.schema import REQUIRED, Argument, arguments, default_of, metadata, type_name, types_of
from rlcore.config.values import first_leaf, nearest, spell
from rlcore.errors import MissingValue, Mistakes, UserError
from rlcore.system.printable import printable, printable_line

LARGEST = 2**63 - 1  # largest integer that arrays, databases and file formats can store


def build(cls: type, values: Any, prefix: str = "", default: Any = None) -> Any:
    """Build a config dataclass from a mapping, after checking its keys, types and bounds.

    Args:
        cls: the dataclass to build; its method `check(prefix)`, if it has one, is called at the end.
        values: plain values (as from YAML or JSON); nested mappings for nested dataclasses.
        prefix: dotted key of this mapping with a dot at its end, for messages.
        default: instance of `cls` with the values of absent keys; None: the defaults of the class. The default of a
            nested group is that of its field, which can differ from the defaults of its class.

    Returns:
        An instance of `cls`.

    Raises:
        UserError: keys are unknown or missing, types are wrong, or values are out of range. The message lists all
            mistakes.
    """
    if not isinstance(values, Mapping):
        name = prefix.rstrip(".")
        raise UserError(
            f"{name}={spell(values)}: {name} is a group of keys, not a single value; set its keys, as in "
            f"{name}.KEY=VALUE"
        )
    fields, mistakes = {f.name: f for f in dataclasses.fields(cls)}, Mistakes()
    for key in values:
        if key not in fields:
            mistakes.note(_unknown(cls, prefix, str(key), values[key]))
    hints = types_of(cls)
    ready: dict[str, Any] = {}
    for name, field in fields.items():
        argument = Argument(prefix + name, hints[name], field.default, **metadata(field))
        value, other = values.get(name, REQUIRED), default_of(field) if default is None else getattr(default, name)
        try:
            if value is not REQUIRED and value != "???":
                ready[name] = convert(value, argument.type, argument.key, other)
                _within(ready[name], argument)
            elif default is not None:
                ready[name] = other
            elif other is REQUIRED:
                raise MissingValue(f"{argument.key} is required: {argument.help}")
        except UserError as error:
            mistakes.note(*error.mistakes)
    mistakes.raise_collected()
    config = cls(**ready)
    mistakes.note(*_without_effect(config, prefix))
    mistakes.raise_collected()
    check = getattr(config, "check", None)
    if check is not None:
        check(prefix)
    return config


def _unknown(cls: type, prefix: str, key: str, value: Any) -> UserError:
    """Create the error for an unknown key. Its message suggests a similar key, or a key of that name in a subgroup.

    If the value of the unknown key is a mapping, the message names the first key in this mapping, such as `a.b`.
    """
    key, value = first_leaf(key, value)
    names = [field.name for field in dataclasses.fields(cls)]
    deeper = [argument.key for argument in arguments(cls, prefix)]
    hint = (
        nearest(prefix + key, [prefix + name for name in names], deeper) or f"; known keys: {', '.join(sorted(names))}"
    )
    return UserError(f"unknown key {prefix + key!r} (value {spell(value)!r}){hint}")


def convert(value: Any, annotation: Any, key: str, default: Any = None) -> Any:
    """Convert a value from YAML or JSON to the type of its field.

    There are no implicit conversions: for example, true is never converted to 1. There is one exception: YAML 1.1 reads
    some numbers, such as 1e-3, as text, and these are converted to numbers.

    Args:
        value: plain value from YAML or JSON.
        annotation: type of the field.
        key: dotted key, for messages.
        default: default of the field. If it is a dataclass, it has the values of the keys that a mapping does not have.

    Returns:
        The converted value. A list becomes a tuple; a mapping becomes an instance of the dataclass if the type is one.

    Raises:
        UserError: the value does not have this type.
    """
    if annotation is Any or isinstance(annotation, TypeVar):  # a TypeVar: the group `algo`, which is built already
        _refuse_control_characters(value, key, printable)
        return value
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        if value is None and type(None) in members:
            return None
        for member in sorted((m for m in members if m is not type(None)), key=_specificity):
            try:
                return convert(value, member, key, default)
            except _Mismatch:
                continue
        raise _Mismatch(key, value, annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, annotation)
        return build(annotation, value, f"{key}.", default if isinstance(default, annotation) else None)
    if origin is tuple:
        return _convert_tuple(value, annotation, key)
    if origin is dict or annotation is dict:
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, annotation)
        _refuse_control_characters(value, key, printable)
        return dict(value)
    return _convert_scalar(value, annotation, key)


def _convert_tuple(value: Any, annotation: Any, key: str) -> tuple[Any, ...]:
    args = typing.get_args(annotation)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _Mismatch(key, value, annotation)
    if len(args) == 2 and args[1] is Ellipsis:
        items = tuple(convert(v, args[0], f"{key}[{i}]") for i, v in enumerate(value))
        if args[0] is str:
            _refuse_repeated(items, key)
        return items
    if len(args) != len(value):
        raise _Mismatch(key, value, annotation)
    return tuple(convert(v, a, f"{key}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))


def _refuse_repeated(items: Sequence[str], key: str) -> None:
    """Raise UserError if a list of names contains an empty or a repeated name."""
    written = f"{key}=[{','.join(items)}]"
    if "" in items:
        raise UserError(f"{written}: must not contain an empty name")
    if repeated := next((item for item in items if items.count(item) > 1), None):
        raise UserError(f"{written}: must not contain {repeated} twice")


def _convert_scalar(value: Any, annotation: Any, key: str) -> Any:
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    if annotation is float and not isinstance(value, bool):
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, str):
            # YAML 1.1 reads 1e-3 as text, although it is a number.
            try:
                return float(value)
            except ValueError:
                raise _Mismatch(key, value, annotation) from None
    if annotation is str and isinstance(value, str):
        _refuse_control_characters(value, key, printable_line)
        return value
    if annotation is type(None) and value is None:
        return None
    raise _Mismatch(key, value, annotation)


def _refuse_control_characters(value: Any, key: str, escape: Callable[[str], str]) -> None:
    """Raise UserError if a text contains terminal control characters; also check texts in lists and mappings.

    `escape` is a function that replaces control characters in a text by escape sequences.
    """
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_control_characters(str(name), key, escape)
            _refuse_control_characters(part, f"{key}.{name}", escape)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _refuse_control_characters(part, key, escape)
    elif isinstance(value, str) and escape(value) != value:
        raise UserError(f"{key}={escape(value)}: must not contain control characters; remove the escaped ones")


class _Mismatch(UserError):
    def __init__(self, key: str, value: Any, annotation: Any) -> None:
        super().__init__(f"{key}={spell(value)}: must be {_a(type_name(annotation))}, got {_a(type_name(type(value)))}")


def _a(allowed: str) -> str:
    """Put "a" or "an" before a description of allowed values: `integer` -> `an integer`; `one of 1, 2` is unchanged."""
    word = allowed.partition(" ")[0]
    return (
        f"{'an' if word == 'integer' else 'a'} {allowed}"
        if word in ("integer", "number", "list", "mapping")
        else allowed
    )


def _specificity(annotation: Any) -> int:
    order = [bool, int, float, str]
    return order.index(annotation) if annotation in order else -1


def _without_effect(config: Any, prefix: str) -> Iterator[UserError]:
    """Yield an error for each key that was set and has no effect, because another key lacks the needed value."""
    for field in dataclasses.fields(config):
        needs, value = field.metadata.get("needs"), getattr(config, field.name)
        if needs is not None and value != default_of(field) and not needs.holds(getattr(config, needs.key)):
            key, condition = f"{prefix}{field.name}", f"{prefix}{needs.key}{needs.words}"
            fix = f"set {condition}, or leave {key} out"
            yield UserError(f"{key}={spell(value)}: has no effect without {condition}; {fix}")


def _within(value: Any, argument: Argument) -> None:
    """Raise UserError if a value is not one of the allowed choices, or if a number in it is out of bounds."""
    key, choices = argument.key, argument.choices
    if value == "" and argument.default != "":
        raise UserError(f"{key}='': must not be empty; give a value or leave {key} out")
    if choices is not None and value not in choices and not dataclasses.is_dataclass(value):
        raise UserError(f"{key}={spell(value)}: must be {argument.allowed}{nearest(spell(value), map(spell, choices))}")
    for number in _numbers(value):
        if not math.isfinite(number):
            raise UserError(f"{key}={number}: must be a finite number")
        if abs(number) > LARGEST and isinstance(number, int):
            raise UserError(f"{key}={number}: must be at most {LARGEST}")
        if (
            (argument.low is not None and number < argument.low)
            or (argument.high is not None and number > argument.high)
            or (argument.above is not None and number <= argument.above)
        ):
            raise UserError(f"{key}={spell(value)}: must be {_a(argument.allowed)}")


def _numbers(value: Any) -> Iterator[int | float]:
    """Yield the numbers in a value: the value if it is a number, or all numbers in a nested tuple; skip booleans."""
    if isinstance(value, tuple):
        for part in cast("tuple[Any, ...]", value):
            yield from _numbers(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
