"""The state of an environment, saved and restored without pickling anything.

A state is read from the plain attributes of every layer of the wrapper chain: numbers, text, arrays, generators and
containers of them. An attribute that holds anything else (a physics engine, say) makes `capture` raise instead of
returning a state that looks complete, unless its suite says how it is saved. Objects that describe rather than change
(spaces, functions, Gymnasium's specs) are left where they are; tables that are not arrays of numbers (transition tables
of the toy-text tasks) are only checked to be equal.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import WrapperSpec

from rlcore.envs.plain import OpaqueValueError, decode, digest, encode, restore_in_place
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
            attributes[name] = {"kind": "canvas"} if _is_canvas(value) else encode(value)
        except OpaqueValueError:
            raise OpaqueStateError(f"{type(layer).__name__}.{name}") from None
    return attributes


def _is_canvas(value: Any) -> bool:
    """Tell whether a value is a screen of pygame's, or its clock: the next picture is drawn on it anew."""
    return type(value).__module__.partition(".")[0] == "pygame"


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
        if isinstance(encoded, dict) and encoded["kind"] == "canvas":
            layer.__dict__.setdefault(name, None)
        elif isinstance(encoded, dict) and encoded["kind"] == "table":
            if present is None or digest(present) != encoded["sha256"]:
                raise RunError(f"{type(layer).__name__}.{name} differs from the one the state was saved with")
        elif not restore_in_place(present, encoded):
            layer.__dict__[name] = decode(encoded)


def _attributes(layer: Any, engines: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The attributes of a layer that may change, but those that its suite saves."""
    for name, value in vars(layer).items():
        if name in CONSTANT_NAMES or isinstance(value, CONSTANT):
            continue
        if not engines or f"{type(layer).__name__}.{name}" not in engines:
            yield name, value
