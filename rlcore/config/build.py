"""A config dataclass from plain values, strictly: every key is known, every value of its type and within its bounds.

Values come from Hydra, from a run directory or from a hand-written mapping. A mistake is one `UserError` that names the
key, the value, what is allowed and the nearest match. Nothing is ever imported because a value names it.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from rlcore.config.schema import REQUIRED, Argument, arguments, default_of, type_name, types_of
from rlcore.config.values import nearest, spell
from rlcore.errors import Mistakes, Unset, UserError
from rlcore.system.printable import printable, printable_line

LARGEST = 2**63 - 1  # of integers: arrays, databases and file formats hold no larger ones


def build(cls: type, values: Any, prefix: str = "") -> Any:
    """A config dataclass from a mapping, strictly.

    Args:
        cls: the dataclass to build; its `check(self)` method, if any, is called at the end.
        values: plain values (as from YAML or JSON); nested mappings for nested dataclasses.
        prefix: the dotted place of this mapping, for messages.

    Returns:
        An instance of `cls`.

    Raises:
        UserError: an unknown key, a wrong type, a value out of range, a missing required key; all that there are.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{prefix.rstrip('.')}={spell(values)}: this is a group of keys, not a single value")
    fields, mistakes = {f.name: f for f in dataclasses.fields(cls)}, Mistakes()
    for key in values:
        if key not in fields:
            mistakes.note(_unknown(cls, prefix, str(key), values[key]))
    hints = types_of(cls)
    ready: dict[str, Any] = {}
    for name, field in fields.items():
        full_key = prefix + name
        with mistakes.catch():
            if name not in values or values[name] is REQUIRED or values[name] == "???":
                if default_of(field) is REQUIRED:
                    raise Unset(f"{full_key} is required: {field.metadata.get('help', '')}")
                continue
            ready[name] = convert(values[name], hints[name], full_key)
            _within(full_key, ready[name], field, hints[name])
    mistakes.tell()
    config = cls(**ready)
    for field in fields.values():
        with mistakes.catch():
            _refuse_without_effect(config, field, prefix)
    mistakes.tell()
    check = getattr(config, "check", None)
    if check is not None:
        check(prefix)
    return config


def _unknown(cls: type, prefix: str, key: str, value: Any) -> UserError:
    """The mistake of a key that a config does not have: with its like, here or, of the same name, deeper.

    Of a group of keys that is not there, its first key.
    """
    while isinstance(value, Mapping) and value:
        first = next(iter(value))
        key, value = f"{key}.{first}", value[first]
    names = [field.name for field in dataclasses.fields(cls)]
    deeper = [argument.key for argument in arguments(cls, prefix)]
    hint = (
        nearest(prefix + key, [prefix + name for name in names], deeper) or f"; known here: {', '.join(sorted(names))}"
    )
    return UserError(f"unknown key {prefix + key!r} (value {spell(value)!r}){hint}")


def convert(value: Any, annotation: Any, key: str) -> Any:
    """`value` as the annotated type, without guessing: true is never 1, text a number only where YAML misread one.

    Args:
        value: as YAML or JSON gave it.
        annotation: the field's type.
        key: dotted, for messages.

    Returns:
        The value; lists become tuples, mappings become dataclasses where the field is one.

    Raises:
        UserError: the value is not of that type.
    """
    if annotation is Any:
        _refuse_control_characters(value, key, printable)
        return value
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(annotation)
        if value is None and type(None) in members:
            return None
        for member in sorted((m for m in members if m is not type(None)), key=_specificity):
            try:
                return convert(value, member, key)
            except _Mismatch:
                continue
        raise _Mismatch(key, value, annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        if not isinstance(value, Mapping):
            raise _Mismatch(key, value, annotation)
        return build(annotation, value, f"{key}.")
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
    """Refuse a list of names that has an empty one, or one of them twice."""
    written = f"{key}=[{','.join(items)}]"
    if "" in items:
        raise UserError(f"{written}: must not contain an empty name")
    if repeated := next((item for item in items if items.count(item) > 1), None):
        raise UserError(f"{written}: {repeated} is named twice; name it once")


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
            # YAML 1.1 reads 1e-3 as text; a user means the number.
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
    """Refuse text, also nested, in which `escape` finds characters that control a terminal."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _refuse_control_characters(str(name), key, escape)
            _refuse_control_characters(part, f"{key}.{name}", escape)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _refuse_control_characters(part, key, escape)
    elif isinstance(value, str) and escape(value) != value:
        raise UserError(f"{key}={escape(value)}: must not contain control characters; remove what is escaped here")


class _Mismatch(UserError):
    def __init__(self, key: str, value: Any, annotation: Any) -> None:
        super().__init__(f"{key}={spell(value)}: must be {_a(type_name(annotation))}, got {_a(type_name(type(value)))}")


def _a(allowed: str) -> str:
    """Allowed values in words, behind their article where they want one."""
    word = allowed.partition(" ")[0]
    return (
        f"{'an' if word == 'integer' else 'a'} {allowed}"
        if word in ("integer", "number", "list", "mapping")
        else allowed
    )


def _specificity(annotation: Any) -> int:
    order = [bool, int, float, str]
    return order.index(annotation) if annotation in order else -1


def _refuse_without_effect(config: Any, field: dataclasses.Field[Any], prefix: str) -> None:
    """Refuse a value, other than the default, that needs another value of another key to have an effect."""
    needs, value = field.metadata.get("needs"), getattr(config, field.name)
    if needs is None or value == default_of(field) or needs.holds(getattr(config, needs.key)):
        return
    key = f"{prefix}{field.name}"
    condition = f"{prefix}{needs.key}{needs.words}"
    raise UserError(f"{key}={spell(value)}: has no effect without {condition}; add that, or leave {key} out")


def _within(key: str, value: Any, field: dataclasses.Field[Any], annotation: Any) -> None:
    meta = field.metadata
    choices = meta.get("choices")
    if value == "" and field.default != "":
        raise UserError(f"{key}='': must not be empty")
    if choices is not None and value not in choices and not dataclasses.is_dataclass(value):
        allowed = ", ".join(spell(c) for c in choices)
        raise UserError(f"{key}={spell(value)}: must be one of {allowed}{nearest(spell(value), map(spell, choices))}")
    for number in _numbers(value):
        if not math.isfinite(number):
            raise UserError(f"{key}={number}: must be a finite number")
        if abs(number) > LARGEST and isinstance(number, int):
            raise UserError(f"{key}={number}: must be at most {LARGEST}")
        low, high, above = meta.get("low"), meta.get("high"), meta.get("above")
        if (
            (low is not None and number < low)
            or (high is not None and number > high)
            or (above is not None and number <= above)
        ):
            allowed = Argument(key, annotation, None, "", None, low, high, above, True).allowed
            raise UserError(f"{key}={spell(value)}: must be {_a(allowed)}")


def _numbers(value: Any) -> Iterator[int | float]:
    """Every number in a value, also of nested lists."""
    if isinstance(value, tuple):
        for part in cast("tuple[Any, ...]", value):
            yield from _numbers(part)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
