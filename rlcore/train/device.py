"""Check of the device and precision of a config against this machine; does not need torch if the device is the CPU."""

from __future__ import annotations

from importlib.metadata import version

from rlcore.config.groups import FabricConfig
from rlcore.config.values import plain, spell
from rlcore.errors import UserError
from rlcore.system.devices import gpus

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def check_device(config: FabricConfig) -> None:
    """Raise a UserError if this machine lacks the device or the precision."""
    wanted, there = config.accelerator in ("cuda", "gpu"), 0 if config.accelerator == "cpu" else gpus()
    if wanted and not there:
        raise UserError(
            f"fabric.accelerator={config.accelerator}: torch {version('torch')} finds no CUDA device on this machine; "
            "use cpu, or install a CUDA build of torch"
        )
    devices = f"fabric.devices={spell(plain(config.devices))}"
    if config.indices is not None and not there:
        raise UserError(
            f"{devices}: selects GPUs, but torch finds none on this machine; give a number of processes instead, such "
            "as fabric.devices=1"
        )
    if config.indices is not None and max(config.indices) >= there:
        raise UserError(f"{devices}: torch finds {there} GPUs on this machine; valid indices are 0 to {there - 1}")
    if wanted and config.ranks > there:
        raise UserError(f"{devices}: torch finds only {there} GPUs on this machine; set fabric.devices={there} or less")
    if PRECISIONS.get(config.precision, config.precision) == "16-mixed" and not there:
        raise UserError(
            f"fabric.precision={config.precision}: float16 requires fabric.accelerator=cuda; use bf16-mixed"
        )
