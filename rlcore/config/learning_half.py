"""Learning half of a config: the keys that affect what is learned, and a hash of their values.

The other keys, for example those for logging or checkpoints, can be changed without a different result of training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rlcore.config.callbacks import KEY as CALLBACKS
from rlcore.config.callbacks import changing_callbacks
from rlcore.config.groups import FabricConfig
from rlcore.config.run import RunConfig
from rlcore.config.values import plain

EXTENDS = "checkpoint.extend_from"


def config_hash(config: RunConfig) -> str:
    """Return the SHA-256 of the config values that affect learning; runs with equal hashes learn the same policy."""
    return half_hash(learning_half(config))


def half_hash(half: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `half`: config values that affect learning, as returned by `learning_half`."""
    return hashlib.sha256(json.dumps(half, sort_keys=True).encode()).hexdigest()


def learning_half(config: Any) -> dict[str, Any]:
    """Return the config keys that affect learning, as nested dicts of JSON values.

    Keys that the schema defines with `arg(..., learning=False)` are omitted, but callbacks that may change training are
    included. A list of GPUs is replaced by its length. `checkpoint.extend_from` is included if it is set, because it
    names the state from which training starts.
    """
    half: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if not field.metadata.get("learning", True):
            continue
        value = getattr(config, field.name)
        half[field.name] = learning_half(value) if dataclasses.is_dataclass(value) else plain(value)
    if isinstance(config, RunConfig) and (changing := changing_callbacks(config.callbacks)):
        half[CALLBACKS] = plain(changing)
    if isinstance(config, FabricConfig) and config.indices is not None:
        half["devices"] = config.ranks  # the choice of GPUs does not affect learning
    if isinstance(config, RunConfig) and config.checkpoint.extend_from is not None:
        half[EXTENDS] = config.checkpoint.extend_from  # a flat key: most configs have no such group in this half
    return half
