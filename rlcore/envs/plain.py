"""Encoding of numbers, text, arrays, random generators, and containers of them for checkpoints, without pickle."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

import numpy as np

CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
MANY_DIGESTS = 64
_DIGESTS: dict[str, str] = {}  # cache: `repr` of a table -> its digest
BIT_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}


class OpaqueValueError(Exception):
    """Error for a value of a type that cannot be encoded."""


def encode(value: Any) -> Any:
    """Encode a value for a checkpoint; the result is the input of `decode`.

    Numbers, text and None are encoded as JSON scalars. Arrays of numbers are copied. Other supported values are encoded
    as a dict whose key `kind` names the type. Only the SHA-256 is stored for a table of constants, which is an array of
    objects or a dict with keys other than text. Raise OpaqueValueError for a type that cannot be encoded.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if np.isfinite(value) else {"kind": "float", "text": repr(value)}
    if kind is np.ndarray:
        if value.dtype.kind in "biuf":
            return value.copy()
        return {"kind": "table", "sha256": digest(value)}
    if isinstance(value, np.str_):
        return {"kind": "str_", "text": str(value)}
    if isinstance(value, (np.number, np.bool_)):
        return {"kind": "scalar", "value": np.array([value])}
    if kind is np.random.Generator:
        name = type(value.bit_generator).__name__
        if name not in BIT_GENERATORS:
            raise OpaqueValueError
        return {"kind": "generator", "name": name, "state": encode(value.bit_generator.state)}
    if kind is np.random.RandomState:
        return {"kind": "random state", "state": encode(value.get_state(legacy=False))}
    if kind in CONTAINERS.values() or kind is dict:
        return _encode_container(value)
    raise OpaqueValueError


def _encode_container(value: Any) -> Any:
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            return {"kind": "table", "sha256": digest(value)}
        pairs = {str(i): {"key": k, "value": encode_inner(v)} for i, (k, v) in enumerate(value.items())}
        return {"kind": "dict", "items": pairs}
    items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    encoded = {str(i): encode_inner(v) for i, v in enumerate(items)}
    size = value.maxlen if isinstance(value, deque) else None
    return {"kind": type(value).__name__, "items": encoded, "maxlen": size}


def encode_inner(value: Any) -> Any:
    """Encode a value that is an element of a container.

    Raise OpaqueValueError for a table (an array of objects, or a dict with keys other than text), because `encode`
    stores only its SHA-256, from which the container could not be restored.
    """
    encoded = encode(value)
    if isinstance(encoded, dict) and encoded["kind"] == "table":
        raise OpaqueValueError
    return encoded


def decode(encoded: Any) -> Any:
    """Return a new object that is equal to the value that was encoded with `encode`."""
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
        bits.state = decode(encoded["state"])
        return np.random.Generator(bits)
    if kind == "random state":
        random = np.random.RandomState()
        random.set_state(decode(encoded["state"]))
        return random
    items = [encoded["items"][str(i)] for i in range(len(encoded["items"]))]
    if kind == "dict":
        return {item["key"]: decode(item["value"]) for item in items}
    if kind == "deque":
        return deque((decode(item) for item in items), encoded["maxlen"])
    return CONTAINERS[kind](decode(item) for item in items)


def restore_in_place(value: Any, encoded: Any) -> bool:
    """Set the random generator `value` to the state that is encoded in `encoded`; return True.

    The object is not replaced by a new one, because other objects can refer to it. If `value` and `encoded` are not
    random generators of the same type, return False and change nothing.
    """
    if not isinstance(encoded, dict) or encoded["kind"] not in ("generator", "random state"):
        return False
    if encoded["kind"] == "random state" and type(value) is np.random.RandomState:
        value.set_state(decode(encoded["state"]))
    elif type(value) is np.random.Generator and type(value.bit_generator).__name__ == encoded.get("name"):
        value.bit_generator.state = decode(encoded["state"])
    else:
        return False
    return True


def digest(value: Any) -> str:
    """Return the SHA-256 of a table, which can contain numbers, text, arrays and containers of them.

    Hashes are cached, because many environments have equal tables. Raise OpaqueValueError if an element has another
    type.
    """
    text = repr(value)  # the repr of a number is exact to its last bit; the repr of an array is not
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
    """Update a hash with a number, a text, an array or a container of them.

    Raise OpaqueValueError if a value has another type.
    """
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
        raise OpaqueValueError
