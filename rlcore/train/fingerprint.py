"""Fingerprint of a run: all settings and versions that affect its results. Equal fingerprints give identical bits.

It has two halves: `learning` (config keys that affect training) and `machine` (device, threads, versions and code).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rlcore import plugins
from rlcore.compiled.when_to_compile import AHEAD_OF_TIME, compiler_version, find_compiler
from rlcore.config.learning_half import learning_half
from rlcore.config.run import RunConfig
from rlcore.envs.card import package_versions
from rlcore.system.devices import gpu_name, processor

if TYPE_CHECKING:
    import torch

GENERATION = 5  # increase it if the same config trains to different bits, or if the components of a state change
LIBRARIES = ("torch", "numpy", "gymnasium", "lightning-fabric", "safetensors")


def fingerprint(config: RunConfig, device: torch.device, tier: str, compiled: str) -> dict[str, Any]:
    """Return the fingerprint of a run that is trained in this process.

    Args:
        config: config of the run. The keys that affect training are part of the fingerprint.
        device: device of the networks.
        tier: method by which unfinished episodes continue on resume: "snapshot", "replay" or "boundary".
        compiled: how gradient steps are computed, as returned by `rlcore.compiled.when_to_compile.decide`.

    Returns:
        A dict with `learning`, `machine` and `digest`. A run can only be resumed if `learning` is equal. If `machine`
        differs, the run can be resumed, but its bits may differ, so the difference is logged. `digest` is the SHA-256
        hash of both.
    """
    halves = {"learning": learning_settings(config, tier, compiled), "machine": machine(config, device, compiled)}
    return halves | {"digest": hashlib.sha256(json.dumps(halves, sort_keys=True).encode()).hexdigest()}


def machine(config: RunConfig, device: torch.device, compiled: str) -> dict[str, Any]:
    """Return the half `machine` of the fingerprint: device, threads, versions, plugins and code of this process."""
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
    """Return the half `learning` of the fingerprint: all settings that affect training.

    These are the config keys that affect training, the tier, and `compiled`, which states how gradient steps are
    computed. The tier is the method by which unfinished episodes continue on resume; episode seeds depend on it. With
    tier "boundary", unfinished episodes are truncated at checkpoints. The intervals of checkpoints and evaluations, and
    `env.sync_env`, are then included, too.
    """
    boundary = None
    if tier == "boundary":
        boundary = {"checkpoint.every": config.checkpoint_every, "evaluation.every": config.evaluation_every}
        boundary |= {"env.sync_env": config.env.sync_env}
    decided = {"config": learning_half(config), "tier": tier, "boundary": boundary, "compile": compiled}
    return decided | {"generation": GENERATION}


def processor_name() -> str:
    """Return the name of the processor model. Models differ in the order of floating-point sums."""
    return processor().get("model name") or platform.machine()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old value, new value) for every difference between two nested mappings."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after
