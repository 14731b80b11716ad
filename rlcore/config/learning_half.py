"""The half of a run's config that decides what is learned, and its hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rlcore.config.groups import FabricConfig, RunConfig
from rlcore.config.values import plain


def config_hash(config: RunConfig) -> str:
    """SHA-256 of the learning half of the config: equal when two runs learn the same."""
    return half_hash(learning_half(config))


def half_hash(half: Mapping[str, Any]) -> str:
    """SHA-256 of a learning half, as `learning_half` gives it or a fingerprint keeps it."""
    return hashlib.sha256(json.dumps(half, sort_keys=True).encode()).hexdigest()


def learning_half(config: Any) -> dict[str, Any]:
    """The keys that decide what is learned, as plain values (those marked `learning=False` left out)."""
    half: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if not field.metadata.get("learning", True):
            continue
        value = getattr(config, field.name)
        half[field.name] = learning_half(value) if dataclasses.is_dataclass(value) else plain(value)
    if isinstance(config, FabricConfig) and config.indices is not None:
        half["devices"] = config.ranks  # which GPUs they are decides nothing
    return half
