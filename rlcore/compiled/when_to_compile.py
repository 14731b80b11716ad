"""Decide whether a run's acting and its minibatch step are compiled ahead of time.

Its config and this machine decide, never what a cache holds: a run resumed later must compute as it began.
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

WORTHWHILE = 44.0  # seconds that compiling must save: twice what the first builds for a configuration take
MANY = 20  # gradient steps for each policy step, more than anybody takes
A_STEP = 1.1e-3  # seconds that compiling saves of a small one: runs of 2,000 policy steps and more are counted
EAGER, AHEAD_OF_TIME, RECORDED = "eager", "ahead-of-time", "cuda-graph"
DESCRIPTIONS = {EAGER: "not compiled", AHEAD_OF_TIME: "compiled", RECORDED: "recorded"}


def unsupported_setting(config: RunConfig) -> str | None:
    """The key whose value no compiled step supports yet, and what it must be; None where all are fine."""
    fabric = config.fabric
    if fabric.precision.startswith("16"):
        return f"fabric.precision={fabric.precision}; use 32-true or bf16-mixed"
    if on_gpu(config) and fabric.ranks > 1:
        return f"fabric.devices={fabric.devices} and fabric.accelerator={fabric.accelerator}; use one GPU"
    return None


def on_gpu(config: RunConfig) -> bool:
    """Tell whether the networks are to live on a GPU."""
    accelerator = config.fabric.accelerator
    return accelerator in ("cuda", "gpu") or (accelerator == "auto" and gpus() > 0)


def check(config: RunConfig) -> None:
    """Refuse `algo.compile=true` beside a setting that is never compiled; the UserError names both keys."""
    setting = unsupported_setting(config)
    if config.algo.compile is True and setting:
        raise UserError(f"algo.compile=true: there is no compiled step with {setting}, or take algo.compile=auto")


def check_compiler(config: RunConfig) -> None:
    """Refuse `algo.compile=true` on a machine that cannot compile; the UserError says why, and what to install."""
    missing = None if config.algo.compile is not True or on_gpu(config) else missing_requirement()
    if missing:
        raise UserError(f"algo.compile=true: {missing}, or take algo.compile=auto")


def decide(config: RunConfig, saved: Mapping[str, Any] | None, count: Callable[[], Arithmetic | None]) -> str:
    """Decide how a run computes its minibatch steps, and log the decision with its reason.

    Args:
        config: the run's.
        saved: the fingerprint of the checkpoint that the run continues from, None for a new run. `auto` stays what it
            was then, also when `algo.total_steps` has become another since.
        count: gives the arithmetic of the run, which takes some tenths of a second; asked of a new run under `auto`.

    Returns:
        EAGER, AHEAD_OF_TIME or, on a GPU, RECORDED: as a CUDA graph.

    Raises:
        UserError: it must be compiled, and that is impossible here.
    """
    before = saved["learning"]["compile"] if saved is not None else None
    way, reason = _choose(config, before, count)
    log.info("%s: %s", "recorded as a CUDA graph" if way == RECORDED else DESCRIPTIONS[way], reason)
    return way


def _choose(config: RunConfig, before: str | None, count: Callable[[], Arithmetic | None]) -> tuple[str, str]:
    """Return how a run computes its minibatch steps, and the reason; `before`: how it did before it was resumed."""
    mode, setting, way = config.algo.compile, unsupported_setting(config), RECORDED if on_gpu(config) else AHEAD_OF_TIME
    if mode is not False and before not in (None, EAGER) and (setting or before != way):
        other = (
            setting or f"fabric.accelerator={config.fabric.accelerator}; use {'cuda' if before == RECORDED else 'cpu'}"
        )
        raise UserError(f"this run began with a {DESCRIPTIONS[before]} step, which there is not with {other}")
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
            raise UserError(f"algo.compile=auto: this run began with a compiled step, but {missing}")
        return before, "as when this run began"
    if missing:
        return EAGER, missing
    pays, reason = _pays(config, count)
    return way if pays else EAGER, f"{reason} (algo.compile=auto)"


def _pays(config: RunConfig, count: Callable[[], Arithmetic | None]) -> tuple[bool, str]:
    """Return True if compiling saves a new run more time than it costs, and the reason in words."""
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
