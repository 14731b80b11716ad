"""Configs of SheepRL, as its command composes them."""

from __future__ import annotations

from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf


def compose(exp: str, *words: str) -> DictConfig:
    """Return the config of an `exp` with further overrides, with unresolved references."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        return hydra.compose("config", [f"exp={exp}", *words])


def resolve(config: Any) -> Any:
    return OmegaConf.to_container(OmegaConf.create(config), resolve=True, throw_on_missing=False)


def flatten(tree: dict[str, Any], separator: str) -> dict[str, Any]:
    """Return the leaves of a tree by their paths."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}{separator}{path}": leaf for path, leaf in flatten(value, separator).items()}
        else:
            flat[str(key)] = value
    return flat
