"""Fingerprint of a run: two runs with equal fingerprints train to identical bits."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rlcore import plugins
from rlcore.compiled.toolchain import compiler_version, find_compiler
from rlcore.compiled.when_to_compile import AHEAD_OF_TIME
from rlcore.config.groups import RunConfig
from rlcore.config.learning_half import learning_half
from rlcore.envs.card import package_versions
from rlcore.system.devices import gpu_name, processor

if TYPE_CHECKING:
    import torch

GENERATION = 5  # increase it if the same config trains to different bits, or if the components of a state change
LIBRARIES = ("torch", "numpy", "gymnasium", "lightning-fabric", "safetensors")


def fingerprint(config: RunConfig, device: torch.device, tier: str, compiled: str) -> dict[str, Any]:
    """Return the fingerprint of a run in this process.

    Args:
        config: the run's config; its learning half is part of the fingerprint.
        device: device of the networks.
        tier: resume tier of the environment.
        compiled: how gradient steps are computed, as returned by `rlcore.compiled.when_to_compile.decide`.

    Returns:
        `learning` (must be equal on resume), `machine` (a difference is logged, because bits may differ) and `digest`.
    """
    whole = {"learning": learning_settings(config, tier, compiled), "machine": machine(config, device, compiled)}
    return whole | {"digest": hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()}


def machine(config: RunConfig, device: torch.device, compiled: str) -> dict[str, Any]:
    """Return the machine half: device, threads, versions, plugins and code of this process."""
    cuda = gpu_name(device) if device.type == "cuda" else None
    compiler = find_compiler() if compiled == AHEAD_OF_TIME else None
    return {
        "device": device.type,
        "device_name": cuda or processor_name(),
        "threads": config.num_threads,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES} | package_versions(config.env.id),
        "compiler": compiler_version(compiler) if compiler else None,
        "plugins": plugins.hashes(),
        "code": json.loads(os.environ.get("SHEPHERD_CODE", "{}")),  # commit, dirty, lock_hash; set by the parent
    }


def learning_settings(config: RunConfig, tier: str, compiled: str) -> dict[str, Any]:
    """Return the learning half: learning keys of the config, tier (it determines episode seeds) and compilation.

    For tier "boundary", also the keys that determine where episodes are cut and which environments share a process.
    """
    boundary = None
    if tier == "boundary":
        boundary = {"checkpoint.every": config.checkpoint_every, "evaluation.every": config.evaluation_every}
        boundary |= {"env.sync_env": config.env.sync_env}
    decided = {"config": learning_half(config), "tier": tier, "boundary": boundary, "compile": compiled}
    return decided | {"generation": GENERATION}


def processor_name() -> str:
    """Return the model of the processor. Processors differ in the order of floating-point sums."""
    return processor().get("model name") or platform.machine()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) for every difference between two nested mappings."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after
