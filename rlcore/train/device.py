"""Check that this machine has the device that a config asks for; known without torch where that is the CPU."""

from __future__ import annotations

from importlib.metadata import version

from rlcore.config.groups import FabricConfig
from rlcore.config.values import plain, spell
from rlcore.errors import UserError
from rlcore.system.devices import gpus

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def check_device(config: FabricConfig) -> None:
    """Refuse a device or precision that this machine does not have."""
    wanted, there = config.accelerator in ("cuda", "gpu"), 0 if config.accelerator == "cpu" else gpus()
    if wanted and not there:
        raise UserError(
            f"fabric.accelerator={config.accelerator}: torch {version('torch')} sees no CUDA device here; "
            "use cpu, or install a CUDA build of torch"
        )
    devices = f"fabric.devices={spell(plain(config.devices))}"
    if config.indices is not None and not there:
        raise UserError(f"{devices}: torch sees no GPU here; give the number of processes, as fabric.devices=1")
    if config.indices is not None and max(config.indices) >= there:
        raise UserError(f"{devices}: torch sees {there} GPUs here; their numbers are 0 to {there - 1}")
    if wanted and config.ranks > there:
        raise UserError(f"{devices}: torch sees {there} GPUs here")
    if PRECISIONS.get(config.precision, config.precision) == "16-mixed" and not there:
        raise UserError(f"fabric.precision={config.precision}: float16 needs fabric.accelerator=cuda; use bf16-mixed")
