"""Saving and restoring of the state of an environment, without pickle.

A state consists of those attributes of the environment and its wrappers that are numbers, text, arrays, random
generators or containers of them. If an attribute has another type, for example a physics engine, `capture` raises
OpaqueStateError, unless the environment's suite has code that saves this attribute. Constant objects (spaces,
functions, Gymnasium's specs) are not saved.

A table is an array of objects, or a dict with keys other than text, for example the transition table of a toy text
environment. Tables are assumed to be constant. Only the SHA-256 of a table is saved; `restore` raises RunError if the
environment's table has another one.
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
# Attributes of Gymnasium's wrappers and environments that never change after construction.
CONSTANT_NAMES = ("_saved_kwargs", "_cached_spec", "spec", "env")


def capture(env: gymnasium.Env) -> State:
    """Return the state of an environment, without changing it.

    Args:
        env: any environment.

    Returns:
        Nested dicts of arrays and JSON scalars, the input of `restore`.

    Raises:
        OpaqueStateError: An attribute cannot be saved; the message names the first such attribute.
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
    """Return True if a value is an object of pygame, for example a screen or a clock.

    Such objects are not saved, because rendering draws everything again.
    """
    return type(value).__module__.partition(".")[0] == "pygame"


def restore(env: gymnasium.Env, state: State) -> None:
    """Restore a captured state in an environment, which can be new or in the middle of an episode.

    Args:
        env: an environment created with the same settings as the captured one.
        state: state from `capture`; it can have been saved to disk.

    Raises:
        RunError: The state was captured from an environment with another class or other wrappers, or a table of
            constants differs.
    """
    own = list(layers(env))
    saved = [state["layers"][str(i)] for i in range(len(state["layers"]))]
    names = [type(layer).__name__ for layer in own]
    if names != [layer["class"] for layer in saved]:
        raise RunError(
            f"the saved environment state belongs to {' > '.join(layer['class'] for layer in saved)}, "
            f"but this environment is {' > '.join(names)}; use the env settings of the saved run"
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
            delattr(layer, name)  # created after the state was saved
    for name, encoded in attributes.items():
        present = layer.__dict__.get(name)
        if isinstance(encoded, dict) and encoded["kind"] == "canvas":
            layer.__dict__.setdefault(name, None)
        elif isinstance(encoded, dict) and encoded["kind"] == "table":
            if present is None or digest(present) != encoded["sha256"]:
                raise RunError(
                    f"{type(layer).__name__}.{name} differs from the table in the saved state; use the env settings "
                    "and package versions of the saved run"
                )
        elif not restore_in_place(present, encoded):
            layer.__dict__[name] = decode(encoded)


def _attributes(layer: Any, engines: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the attributes of one wrapper or environment that can change.

    `engines` lists attributes, as `Class.name`, that the environment's suite saves; they are left out.
    """
    for name, value in vars(layer).items():
        if name in CONSTANT_NAMES or isinstance(value, CONSTANT):
            continue
        if not engines or f"{type(layer).__name__}.{name}" not in engines:
            yield name, value
