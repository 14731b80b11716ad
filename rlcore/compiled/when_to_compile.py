"""Decision whether policy inference and gradient steps of a run are compiled. Importing it does not import torch.

The decision depends on the config and the machine, but not on the cache of compiled functions, so that it is
reproducible. A resumed run keeps the decision, because compiled and eager code round differently.

A gradient step of small networks consists of about a thousand small operations. Each operation has an overhead of some
microseconds, which compilation removes. Compilation does not speed up products of large matrices.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.system.devices import gpus
from rlcore.system.printable import DETAIL

log = logging.getLogger(__name__)

WORTHWHILE = 44.0  # seconds that compilation must save: twice the time of the first builds for a configuration
MANY = 20  # upper bound of the gradient steps per policy step in practice
A_STEP = 1.1e-3  # seconds that compilation saves in a small gradient step; runs below 2,000 policy steps stay eager
EAGER, AHEAD_OF_TIME, RECORDED = "eager", "ahead-of-time", "cuda-graph"
DESCRIPTIONS = {EAGER: "not compiled", AHEAD_OF_TIME: "compiled", RECORDED: "recorded as a CUDA graph"}
STEPS = {AHEAD_OF_TIME: "compiled gradient steps", RECORDED: "gradient steps recorded as a CUDA graph"}
# Seconds that compilation saves per operation (1.1 ms for the 219 operations of PPO's step) and per call of the policy,
# measured with one thread of a CPU of 2023.
AN_OPERATION, AN_ACTION = 5e-6, 1e-4
# Floating-point operations per second in products of matrices, on a CPU and on a GPU; compilation does not change them.
# On a GPU, recording saves 11 to 16 µs per operation (docs/results/gpu.md), and policy inference is not recorded.
RATE, RATE_OF_GPU = 1e11, 1e14
SHARE = 0.05  # smaller fractions of a step's time do not count as a saving


@dataclass(frozen=True)
class Arithmetic:
    """Number of gradient steps and policy calls of a run, and the cost of a gradient step.

    Attributes:
        steps: number of gradient steps of each rank in the run.
        operations: number of torch operations in one gradient step, on average.
        flops: number of floating-point operations in the matrix products and convolutions of one gradient step.
        calls: number of policy calls in the run; 0 if policy inference would not be compiled.
        rate: assumed speed of the device in floating-point operations per second.
    """

    steps: int
    operations: float
    flops: float
    calls: int
    rate: float = RATE

    @property
    def step_saved(self) -> float:
        """Seconds that compilation saves in a gradient step; 0 if they are less than 5 % (`SHARE`) of its time."""
        saved = AN_OPERATION * self.operations
        return saved if saved >= SHARE * (saved + self.flops / self.rate) else 0.0

    @property
    def saved(self) -> float:
        """Seconds that compilation saves in all gradient steps and policy calls of the run."""
        return self.steps * self.step_saved + (self.calls * AN_ACTION if self.step_saved else 0.0)

    def __str__(self) -> str:
        """Return a description for the run's log."""
        each = f"{self.steps:,} gradient steps of {self.operations:,.0f} operations and {self.flops / 1e6:,.1f} MFLOP"
        return (
            f"{each}; compiled, each saves {self.step_saved * 1e3:.1f} ms, the run with its actions {self.saved:,.0f} s"
        )


# The C++ compiler of this machine -------------------------------------------------------------------------------------

PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)  # paths that torch can pass to the compiler


def find_compiler() -> str | None:
    """Return the path of the C++ compiler, or None if this machine has none.

    It is the one in the environment variable CXX or, if that is not set, g++ or clang++.
    """
    # CXX may start with a wrapper: `ccache g++`.
    candidates = os.environ.get("CXX", "").split()[::-1] or ["g++", "clang++"]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def missing_requirement() -> str | None:
    """Return the reason why functions cannot be compiled on this machine, with a fix; None if they can."""
    if find_compiler() is None:
        return "this machine has no C++ compiler (CXX, g++, clang++); on Debian and Ubuntu: apt install g++"
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    if PLAIN_PATH.fullmatch(torch.origin) is None:
        folder = Path(torch.origin).parent
        return (
            f"the C++ compiler cannot read torch's headers in {folder}, because the path contains special characters; "
            "install torch in a path of letters, digits and / _ . + - only"
        )
    return None


@functools.cache
def compiler_version(path: str) -> str:
    """Return the first line of `<compiler> --version`."""
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]


# The decision ---------------------------------------------------------------------------------------------------------


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
    if config.algo.total_steps is None:
        return False, "the length of the run is unknown; algo.compile=true compiles it"
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
        f"compiling takes about {WORTHWHILE / 2:.0f} s once and would save about {int(counted.saved):,} s of this run; "
        f"it is automatic if it saves {WORTHWHILE:.0f} s",
    )
