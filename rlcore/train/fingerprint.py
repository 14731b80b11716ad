"""Fingerprint: what two runs must share to give the same bits."""

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

GENERATION = 5  # raise it when the same config learns other numbers, or a state has other parts
LIBRARIES = ("torch", "numpy", "gymnasium", "lightning-fabric", "safetensors")


def fingerprint(config: RunConfig, device: torch.device, tier: str, compiled: str) -> dict[str, Any]:
    """The fingerprint of a run in this process.

    Args:
        config: its learning half decides what is learned.
        device: where the networks live.
        tier: how the environment is resumed.
        compiled: how minibatch steps are computed, as `rlcore.compiled.when_to_compile.decide` says.

    Returns:
        `learning` (must not differ on resume), `machine` (a difference is said: bits may differ) and `digest`.
    """
    whole = {"learning": learning_settings(config, tier, compiled), "machine": machine(config, device, compiled)}
    return whole | {"digest": hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()}


def machine(config: RunConfig, device: torch.device, compiled: str) -> dict[str, Any]:
    """The machine half: device, threads, versions, plugins, code, of this process."""
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
        "code": json.loads(os.environ.get("SHEPHERD_CODE", "{}")),  # commit, dirty, lock_hash, told by the driver
    }


def learning_settings(config: RunConfig, tier: str, compiled: str) -> dict[str, Any]:
    """The learning half: the config's, the tier (it decides how episodes are seeded) and how steps are computed.

    For tier "boundary" also what decides where episodes are cut, and which environments share a process.
    """
    boundary = None
    if tier == "boundary":
        boundary = {"checkpoint.every": config.checkpoint_every, "evaluation.every": config.evaluation_every}
        boundary |= {"env.sync_env": config.env.sync_env}
    decided = {"config": learning_half(config), "tier": tier, "boundary": boundary, "compile": compiled}
    return decided | {"generation": GENERATION}


def processor_name() -> str:
    """The processor's model; floating-point sums are done in another order on another one."""
    return processor().get("model name") or platform.machine()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every (dotted key, old value, new value) in which two nested mappings differ."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after
