"""The state of an environment, saved and restored without pickling anything.

A state is read from the plain attributes of every layer of the wrapper chain: numbers, text, arrays, generators and
containers of them. An attribute that holds anything else (a physics engine, say) makes `capture` raise instead of
returning a state that looks complete, unless its suite says how it is saved. Objects that describe rather than change
(spaces, functions, Gymnasium's specs) are left where they are; tables that are not arrays of numbers (transition tables
of the toy-text tasks) are only checked to be equal.
"""

from __future__ import annotations

import enum
import hashlib
import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import WrapperSpec

from rlcore.envs.suites.registry import suite_of
from rlcore.envs.suites.suite import OpaqueStateError
from rlcore.envs.wrappers import layers
from rlcore.errors import RunError
from rlcore.types import State

CONSTANT = (
    spaces.Space,
    GymnasiumSpec,
    WrapperSpec,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    enum.Enum,
    np.dtype,
    np.ufunc,
)
# Attributes Gymnasium's own layers keep that never change after construction, whatever they hold.
CONSTANT_NAMES = ("_saved_kwargs", "_cached_spec", "spec", "env")
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
MANY_DIGESTS = 64
_DIGESTS: dict[str, str] = {}  # of tables, by how they are written
BIT_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}


class _OpaqueValueError(Exception):
    """A value whose state cannot be read."""


def capture(env: gymnasium.Env) -> State:
    """The state of an environment, which is not changed.

    Args:
        env: any environment.

    Returns:
        Nested dicts of arrays and JSON scalars for `restore`.

    Raises:
        OpaqueStateError: an attribute cannot be read; names the first one.
    """
    suite = suite_of(env)
    engines = () if suite is None else suite.engines
    state: State = {
        "layers": {
            str(index): {"class": type(layer).__name__, "attributes": _encode_attributes(layer, engines)}
            for index, layer in enumerate(layers(env))
        }
    }
    if suite is not None and engines:
        state["engines"] = suite.capture(env.unwrapped)
    return state


def _encode_attributes(layer: Any, engines: Sequence[str]) -> State:
    if not hasattr(layer, "__dict__"):
        raise OpaqueStateError(type(layer).__name__)
    attributes: State = {}
    for name, value in _attributes(layer, engines):
        try:
            attributes[name] = _encode(value)
        except _OpaqueValueError:
            raise OpaqueStateError(f"{type(layer).__name__}.{name}") from None
    return attributes


def restore(env: gymnasium.Env, state: State) -> None:
    """Put an environment into a captured state; a freshly built one, or one that was used.

    Args:
        env: an environment made with the same settings as the captured one.
        state: from `capture`, perhaps read back from disk.

    Raises:
        RunError: the state belongs to another kind of environment.
    """
    own = list(layers(env))
    saved = [state["layers"][str(i)] for i in range(len(state["layers"]))]
    names = [type(layer).__name__ for layer in own]
    if names != [layer["class"] for layer in saved]:
        raise RunError(
            f"the saved environment state is of {' > '.join(layer['class'] for layer in saved)}, "
            f"this environment is {' > '.join(names)}"
        )
    suite = suite_of(env)
    engines = () if suite is None else suite.engines
    for layer, part in zip(own, saved, strict=True):
        _restore_layer(layer, part["attributes"], engines)
    if suite is not None and engines:
        suite.restore(env.unwrapped, state["engines"])


def _restore_layer(layer: Any, attributes: State, engines: Sequence[str]) -> None:
    for name, _ in list(_attributes(layer, engines)):
        if name not in attributes:
            delattr(layer, name)  # came into being after the state was taken
    for name, encoded in attributes.items():
        present = layer.__dict__.get(name)
        if isinstance(encoded, dict) and encoded["kind"] == "table":
            if present is None or _digest(present) != encoded["sha256"]:
                raise RunError(f"{type(layer).__name__}.{name} differs from the one the state was saved with")
        elif isinstance(encoded, dict) and encoded["kind"] == "generator" and _same_generator(present, encoded):
            present.bit_generator.state = _decode(encoded["state"])  # in place: others may hold the same generator
        else:
            layer.__dict__[name] = _decode(encoded)


def _attributes(layer: Any, engines: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The attributes of a layer that may change, but those that its suite saves."""
    for name, value in vars(layer).items():
        if name in CONSTANT_NAMES or isinstance(value, CONSTANT):
            continue
        if not engines or f"{type(layer).__name__}.{name}" not in engines:
            yield name, value


def _encode(value: Any) -> Any:
    """A value as JSON scalars, arrays and dicts with a `kind`; _OpaqueValueError where its state cannot be read."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if np.isfinite(value) else {"kind": "float", "text": repr(value)}
    if kind is np.ndarray:
        if value.dtype.kind in "biuf":
            return value.copy()
        return {"kind": "table", "sha256": _digest(value)}
    if isinstance(value, np.str_):
        return {"kind": "str_", "text": str(value)}
    if isinstance(value, (np.number, np.bool_)):
        return {"kind": "scalar", "value": np.array([value])}
    if kind is np.random.Generator:
        name = type(value.bit_generator).__name__
        if name not in BIT_GENERATORS:
            raise _OpaqueValueError
        return {"kind": "generator", "name": name, "state": _encode(value.bit_generator.state)}
    if kind in CONTAINERS.values() or kind is dict:
        return _encode_container(value)
    raise _OpaqueValueError


def _encode_container(value: Any) -> Any:
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            return {"kind": "table", "sha256": _digest(value)}
        pairs = {str(i): {"key": k, "value": _encode_inner(v)} for i, (k, v) in enumerate(value.items())}
        return {"kind": "dict", "items": pairs}
    items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    encoded = {str(i): _encode_inner(v) for i, v in enumerate(items)}
    size = value.maxlen if isinstance(value, deque) else None
    return {"kind": type(value).__name__, "items": encoded, "maxlen": size}


def _encode_inner(value: Any) -> Any:
    encoded = _encode(value)
    if isinstance(encoded, dict) and encoded["kind"] == "table":  # a container is rebuilt, a table can only be checked
        raise _OpaqueValueError
    return encoded


def _decode(encoded: Any) -> Any:
    if isinstance(encoded, np.ndarray):
        return encoded.copy()
    if not isinstance(encoded, dict):
        return encoded
    kind = encoded["kind"]
    if kind == "float":
        return float(encoded["text"])
    if kind == "str_":
        return np.str_(encoded["text"])
    if kind == "scalar":
        return encoded["value"][0]
    if kind == "generator":
        bits = BIT_GENERATORS[encoded["name"]]()
        bits.state = _decode(encoded["state"])
        return np.random.Generator(bits)
    items = [encoded["items"][str(i)] for i in range(len(encoded["items"]))]
    if kind == "dict":
        return {item["key"]: _decode(item["value"]) for item in items}
    if kind == "deque":
        return deque((_decode(item) for item in items), encoded["maxlen"])
    return CONTAINERS[kind](_decode(item) for item in items)


def _same_generator(value: Any, encoded: State) -> bool:
    return type(value) is np.random.Generator and type(value.bit_generator).__name__ == encoded["name"]


def _digest(value: Any) -> str:
    """SHA-256 of a table of plain values; of many environments with equal ones it is computed once."""
    text = repr(value)  # tells numbers of all kinds apart to the last bit, but not arrays
    if "array(" in text:
        return _compute_digest(value)
    if text not in _DIGESTS:
        while len(_DIGESTS) >= MANY_DIGESTS:
            _DIGESTS.pop(next(iter(_DIGESTS)))
        _DIGESTS[text] = _compute_digest(value)
    return _DIGESTS[text]


def _compute_digest(value: Any) -> str:
    digest = hashlib.sha256()
    _hash_into(digest, value)
    return digest.hexdigest()


def _hash_into(digest: Any, value: Any) -> None:
    """Hash a table of plain values; _OpaqueValueError where something in it is not plain."""
    kind = type(value)
    digest.update(kind.__name__.encode())
    if value is None or kind in (bool, int, float, str, bytes) or isinstance(value, np.generic):
        digest.update(repr(value).encode())
    elif kind is np.ndarray and value.dtype.kind != "O":
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif kind is dict:
        for key, inner in value.items():
            _hash_into(digest, key)
            _hash_into(digest, inner)
    elif kind in (list, tuple):
        digest.update(str(len(value)).encode())
        for inner in value:
            _hash_into(digest, inner)
    else:
        raise _OpaqueValueError
