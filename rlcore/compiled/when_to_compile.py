"""Whether a run's acting and its minibatch step are compiled ahead of time.

Its config and this machine decide, never what a cache holds: a run resumed later must compute as it began.
"""

from __future__ import annotations

from typing import Any

from rlcore.compiled.toolchain import missing_requirement
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError
from rlcore.system.devices import gpus

# Seconds that compiling saves: a step of 64 samples takes about 1.4 ms, compiled 0.25; to act in one environment 120,
# compiled 20 µs. `auto` compiles where that comes to twice what the first builds for a configuration take.
A_STEP, AN_ACTION, WORTHWHILE = 1.1e-3, 1e-4, 44.0
EAGER, AHEAD_OF_TIME = "eager", "ahead-of-time"


def unsupported_setting(config: RunConfig) -> str | None:
    """The key whose value no compiled step supports yet, and what it must be; None where all are fine."""
    fabric = config.fabric
    if fabric.precision.startswith("16"):
        return f"fabric.precision={fabric.precision}; use 32-true or bf16-mixed"
    if fabric.accelerator in ("cuda", "gpu") or (fabric.accelerator == "auto" and gpus()):
        return f"fabric.accelerator={fabric.accelerator}; use cpu"
    return None


def check(config: RunConfig) -> None:
    """Refuse `algo.compile=true` beside a setting that is never compiled; the UserError names both keys."""
    setting = unsupported_setting(config)
    if config.algo.compile is True and setting:
        raise UserError(f"algo.compile=true: there is no compiled step with {setting}, or take algo.compile=auto")


def check_compiler(config: RunConfig) -> None:
    """Refuse `algo.compile=true` on a machine that cannot compile; the UserError says why, and what to install."""
    missing = missing_requirement()
    if config.algo.compile is True and missing:
        raise UserError(f"algo.compile=true: {missing}, or take algo.compile=auto")


def seconds_saved(config: RunConfig) -> float:
    """What compiling saves a whole run, by the arithmetic of its config."""
    algo = config.algo
    calls = algo.iterations(config.width) * algo.collect_length
    return A_STEP * algo.gradient_steps(config.width, config.fabric.ranks) + AN_ACTION * calls


def decide(config: RunConfig, saved: dict[str, Any] | None) -> str:
    """How a run computes its minibatch steps.

    Args:
        config: the run's.
        saved: the fingerprint of the checkpoint that the run continues from, None for a new run. `auto` stays what it
            was then, also when `algo.total_steps` has become another since.

    Returns:
        EAGER or AHEAD_OF_TIME.

    Raises:
        UserError: it must be compiled, and that is impossible here.
    """
    mode, setting = config.algo.compile, unsupported_setting(config)
    before = saved["learning"]["compile"] if saved is not None else None
    if mode is not False and setting and before == AHEAD_OF_TIME:
        raise UserError(f"this run began with a compiled step, which there is not with {setting}")
    if mode is False or setting:
        return EAGER
    check_compiler(config)
    if mode is True:
        return AHEAD_OF_TIME
    missing = missing_requirement()
    if before is None:
        return AHEAD_OF_TIME if missing is None and seconds_saved(config) >= WORTHWHILE else EAGER
    if before == AHEAD_OF_TIME and missing:
        raise UserError(f"algo.compile=auto: this run began with a compiled step, but {missing}")
    return before
