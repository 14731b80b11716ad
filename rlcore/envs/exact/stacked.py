"""Stacked states of many environments: a single dict of arrays instead of one dict for each environment.

A value that is the same in all environments is stored once; different values are stored as an array with one element
for each environment. The number of entries therefore does not depend on the number of environments. Every entry is a
dict. The first key of the dict names the form in which the values are stored:

    same     one value that all environments share
    fields   key -> entry, if all values are dicts with these keys
    arrays   [B, ...], if all values are arrays of one type and shape
    rows     concatenated arrays and their `lengths` [B], if the arrays differ in the size of their first axis only
    numbers  [B], Python numbers of one type
    wide     [B, 2] uint64, high and low halves of integers of up to 128 bits
    groups   group number -> entry, and `of` [B], the group number of each environment, if the values have different
             forms; the values of one group have one form
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from rlcore.envs.plain import encode, encode_inner
from rlcore.types import State

NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}


def stack(values: Sequence[Any]) -> State:
    """Stack the values of B environments, which consist of JSON values, arrays of numbers, and dicts with text keys."""
    forms = [_form(value) for value in values]
    groups: dict[Hashable, list[Any]] = {}
    for form, value in zip(forms, values, strict=True):
        groups.setdefault(form, []).append(value)
    if len(groups) == 1:
        return _stack(values)
    numbers = {form: number for number, form in enumerate(groups)}
    entries = {str(numbers[form]): _stack(members) for form, members in groups.items()}
    return {"groups": entries, "of": np.array([numbers[form] for form in forms])}


def stack_encoded(values: Sequence[Any], one: Callable[[Any], Any] = encode) -> State:
    """Encode values with the function `one` and stack the results.

    The result is equal to `stack([one(value) for value in values])`, but for numbers, dicts and random generators it is
    computed faster. `one` is the function `encode`, or `encode_inner` for values inside a container. Raise
    OpaqueValueError if a value cannot be encoded.
    """
    first, kind = values[0], type(values[0])
    if set(map(type, values)) == {kind}:
        if first is None or (kind in (bool, str) and values.count(first) == len(values)):
            return {"same": first}
        if kind is int and min(values) >= 2**63 and max(values) < 2**128:
            return _stack(values)
        if kind in (int, float) and (numbers := np.array(values)).dtype == NUMBERS[kind] and np.isfinite(numbers).all():
            return _stack_numbers(first, numbers)
        if kind is dict and len(set(map(tuple, values))) == 1 and all(type(key) is str for key in first):
            columns = [stack_encoded([value[key] for value in values], encode_inner) for key in first]
            pairs = zip(first, columns, strict=True)
            items = {
                str(i): {"fields": {"key": {"same": key}, "value": column}} for i, (key, column) in enumerate(pairs)
            }
            return {"fields": {"kind": {"same": "dict"}, "items": {"fields": items}}}
        if kind is np.random.Generator and len({type(value.bit_generator) for value in values}) == 1:
            encoded = encode(first)
            states = stack_encoded([value.bit_generator.state for value in values])
            return {"fields": {"kind": {"same": encoded["kind"]}, "name": {"same": encoded["name"]}, "state": states}}
    return stack([one(value) for value in values])


def unstack(entry: State, count: int) -> list[Any]:
    """Return the list of values that were passed to `stack`; raise ValueError if their number is not `count`."""
    kind = next(iter(entry))
    content = entry[kind]
    if kind == "same":
        return [content] * count
    if kind == "fields":
        columns = {key: unstack(inner, count) for key, inner in content.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    found = _regroup(entry) if kind == "groups" else _values(entry, kind)
    if len(found) != count:
        raise ValueError(f"the stacked state was saved with {len(found)} environments, but num_envs is {count}")
    return found


def _form(value: Any) -> Hashable:
    """Return the form (type, keys, shape) of a value; values with equal forms can be stored in one array."""
    if isinstance(value, dict):
        return dict, tuple(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.shape[1:]
    if type(value) is int:
        return int if -(2**63) <= value < 2**63 else "wide" if 0 <= value < 2**128 else value
    return type(value) if type(value) in NUMBERS else (type(value), value)


def _stack(values: Sequence[Any]) -> State:
    """Stack values that all have the same form."""
    first = values[0]
    if isinstance(first, dict):
        return {"fields": {key: stack([value[key] for value in values]) for key in first}}
    if isinstance(first, np.ndarray):
        if len({value.shape for value in values}) == 1:
            return {"arrays": np.stack(values)}
        return {"rows": np.concatenate(values), "lengths": np.array([len(value) for value in values])}
    if _form(first) == "wide":
        return {"wide": np.frombuffer(b"".join(v.to_bytes(16) for v in values), ">u8").reshape(-1, 2).astype(np.uint64)}
    if type(first) not in NUMBERS or _form(first) is first:
        return {"same": first}
    return _stack_numbers(first, np.array(values, NUMBERS[type(first)]))


def _stack_numbers(first: Any, numbers: np.ndarray) -> State:
    # Compare bits instead of values, because 0.0 == -0.0 and NaN != NaN.
    same = (numbers[:, None].view(np.uint8) == numbers[:1, None].view(np.uint8)).all()
    return {"same": first} if same else {"numbers": numbers}


def _values(entry: State, kind: str) -> list[Any]:
    content = entry[kind]
    if kind == "numbers":
        return content.tolist()
    if kind == "wide":
        return [high << 64 | low for high, low in content.tolist()]
    if kind == "rows":
        ends = np.cumsum(entry["lengths"]).tolist()
        return [content[begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]
    if kind == "arrays":
        return [content[i, ...].copy() for i in range(len(content))]
    raise ValueError(
        f"unknown form {kind!r} in a stacked state; if another version of this project saved it, load it with that one"
    )


def _regroup(entry: State) -> list[Any]:
    of = entry["of"].tolist()
    members = {int(number): iter(unstack(inner, of.count(int(number)))) for number, inner in entry["groups"].items()}
    return [next(members[number]) for number in of]
