"""Decision whether policy inference and gradient steps of a run are compiled.

The decision depends on the config and the machine, but not on the cache of compiled functions, so that it is
reproducible. A resumed run keeps the decision, because compiled and eager code round differently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlcore.compiled.toolchain import missing_requirement
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError
from rlcore.system.devices import gpus
from rlcore.system.printable import DETAIL

if TYPE_CHECKING:
    from rlcore.compiled.cost import Arithmetic

log = logging.getLogger(__name__)

WORTHWHILE = 44.0  # seconds that compilation must save: twice the time of the first builds for a configuration
MANY = 20  # upper bound of the gradient steps per policy step in practice
A_STEP = 1.1e-3  # seconds that compilation saves in a small gradient step; runs below 2,000 policy steps stay eager
EAGER, AHEAD_OF_TIME, RECORDED = "eager", "ahead-of-time", "cuda-graph"
DESCRIPTIONS = {EAGER: "not compiled", AHEAD_OF_TIME: "compiled", RECORDED: "recorded as a CUDA graph"}
STEPS = {AHEAD_OF_TIME: "compiled gradient steps", RECORDED: "gradient steps recorded as a CUDA graph"}


def unsupported_setting(config: RunConfig) -> str | None:
    """Return the first setting in the config that excludes compiled gradient steps, and the values that do not.

    The result has the form "key=value; use ...". It is None if compiled gradient steps support all settings.
    """
    fabric = config.fabric
    if fabric.precision.startswith("16"):
        return f"fabric.precision={fabric.precision}; use 32-true or bf16-mixed"
    if on_gpu(config) and fabric.ranks > 1:
        return f"fabric.devices={fabric.devices} and fabric.accelerator={fabric.accelerator}; use one GPU"
    return None


def on_gpu(config: RunConfig) -> bool:
    """Return True if the networks of the run are placed on a GPU."""
    accelerator = config.fabric.accelerator
    return accelerator in ("cuda", "gpu") or (accelerator == "auto" and gpus() > 0)


def check(config: RunConfig) -> None:
    """Raise UserError if `algo.compile=true` is combined with a setting that compiled steps do not support."""
    setting = unsupported_setting(config)
    if config.algo.compile is True and setting:
        raise UserError(f"algo.compile=true: cannot be combined with {setting}, or set algo.compile=auto")


def check_compiler(config: RunConfig) -> None:
    """Raise UserError if `algo.compile=true` and this machine cannot compile functions (see `missing_requirement`)."""
    missing = None if config.algo.compile is not True or on_gpu(config) else missing_requirement()
    if missing:
        raise UserError(f"algo.compile=true: {missing}, or set algo.compile=auto")


def decide(config: RunConfig, saved: Mapping[str, Any] | None, count: Callable[[], Arithmetic | None]) -> str:
    """Decide whether a run compiles its gradient steps, and log the decision with its reason.

    Args:
        config: configuration of the run.
        saved: fingerprint of the checkpoint from which the run resumes; None for a new run. With `algo.compile=auto`, a
            resumed run keeps the earlier decision, even if `algo.total_steps` has changed.
        count: function that counts the operations of the run, which takes some tenths of a second, or returns None if
            they cannot be counted. It is called only for a new run with `algo.compile=auto`.

    Returns:
        EAGER, AHEAD_OF_TIME (machine code, on the CPU) or RECORDED (a CUDA graph, on a GPU).

    Raises:
        UserError: if the config or the resumed run requires compiled steps, but config or machine do not support them.
    """
    before = saved["learning"]["compile"] if saved is not None else None
    way, reason = _choose(config, before, count)
    log.info("%s: %s", DESCRIPTIONS[way], reason)
    return way


def _choose(config: RunConfig, before: str | None, count: Callable[[], Arithmetic | None]) -> tuple[str, str]:
    """Decide if and how the run is compiled (see `decide`), and return the decision and its reason.

    `before` is the earlier decision of a resumed run, or None. `count` counts the operations of a gradient step.
    """
    mode, setting, way = config.algo.compile, unsupported_setting(config), RECORDED if on_gpu(config) else AHEAD_OF_TIME
    if mode is not False and before not in (None, EAGER) and (setting or before != way):
        other = (
            setting or f"fabric.accelerator={config.fabric.accelerator}; use {'cuda' if before == RECORDED else 'cpu'}"
        )
        raise UserError(f"the run began with {STEPS[before]}, which are not available with {other}")
    if mode is False:
        return EAGER, "algo.compile=false"
    if setting:
        return EAGER, f"not supported with {setting}"
    check_compiler(config)
    if mode is True:
        return way, "algo.compile=true"
    missing = None if way == RECORDED else missing_requirement()
    if before is not None:
        if before == AHEAD_OF_TIME and missing:
            raise UserError(f"algo.compile=auto: the run began with {STEPS[before]}, but {missing}")
        return before, "as when this run began"
    if missing:
        return EAGER, missing
    pays, reason = _pays(config, count)
    return way if pays else EAGER, f"{reason} (algo.compile=auto)"


def _pays(config: RunConfig, count: Callable[[], Arithmetic | None]) -> tuple[bool, str]:
    """Return a boolean and a sentence for the log.

    The boolean is True if compilation saves at least 44 s (`WORTHWHILE`) of a new run. The sentence gives the reason.
    """
    if config.dry_run:
        return False, "compiling would not save a dry run any time"
    if config.algo.total_steps * MANY * A_STEP < WORTHWHILE:
        return False, "the run is too short for compiling to save time"
    counted = count()
    if counted is None:
        return False, "the time that compiling would save could not be computed"
    log.info("%s", counted, extra=DETAIL)
    if counted.saved >= WORTHWHILE:
        return True, f"compiling saves about {int(counted.saved):,} s of this run"
    return (
        False,
        f"compiling would save about {int(counted.saved):,} s of this run, less than the {WORTHWHILE:.0f} s required",
    )
