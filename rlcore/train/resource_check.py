"""Checks that this machine can train a run: its device and precision, and enough memory, disk space and threads.

The checks precede every allocation. torch is imported only to count GPUs or the memory of large networks.
"""

from __future__ import annotations

import dataclasses
import logging
from importlib.metadata import version
from pathlib import Path

from rlcore.compiled.when_to_compile import on_gpu
from rlcore.config.groups import FabricConfig
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import at, plain, spell
from rlcore.data.sizes import row_bytes
from rlcore.errors import UserError
from rlcore.spec import EnvSpec
from rlcore.system.devices import gpus
from rlcore.system.free_memory import FreeResources
from rlcore.system.printable import DETAIL
from rlcore.train.buffer_placement import place_buffer
from rlcore.train.largest_fitting import largest_fitting, resized
from rlcore.train.memory_estimate import PROCESS, ResourceEstimate, estimate

log = logging.getLogger(__name__)
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
MEMORIES = 8  # upper bound of the space of a replay buffer's rows, with files and checkpoints, in sizes of the buffer
LARGE = 100_000  # elements of an observation, or choices of an action, that the error message mentions
LAYERS = 16  # assumed number of layers as wide as the largest integer of the config; decides if the state is counted


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


def check_resources(config: RunConfig, spec: EnvSpec, folder: Path, begun: bool = False, command: bool = False) -> None:
    """Raise a UserError if a run needs more resources than this machine has.

    Args:
        config: config of the run.
        spec: spec of its environment.
        folder: run directory; need not exist.
        begun: True in the process that trains the run. The memory of the algorithm's state is then always counted,
            which imports torch, and the estimate is logged. If False, the state is only counted if config values are
            so large that it might not fit.
        command: True if a Shepherd command started this process. The logged estimate then includes the processes of
            the command, Prefect and MLflow.

    Raises:
        UserError: If a resource is too small. The message names the config key that is the cause, and the largest value
            that fits. If no single key is the cause, it lists the needed bytes by purpose.
    """
    free = FreeResources.at(folder)
    if begun:
        free = _add_own_use(free, config, folder)
        config = _place_buffer(free, config, spec)
    estimated = _check(free, config, spec, counts=False)  # the estimate without the algorithm's state is fast
    if begun or _may_be_large(config, spec, free):
        estimated = _check(free, config, spec, counts=True)
    if begun:
        log.info("%s", estimated.sentence(free, command))
        for sentence in estimated.details(free, command):
            log.info("%s", sentence, extra=DETAIL)


def _place_buffer(free: FreeResources, config: RunConfig, spec: EnvSpec) -> RunConfig:
    """Return the config with the decision whether the replay buffer is on the GPU, as the trainer will make it."""
    if free.device is None or config.buffer.on_device is not None:
        return config
    from rlcore.envs.make import suite_for
    from rlcore.train.counting import count  # torch

    suite, env_id = suite_for(config.env)
    if suite.batched(env_id, {}) is None:
        return config
    return place_buffer(config, spec, count(config, spec), free.device)


def _check(free: FreeResources, config: RunConfig, spec: EnvSpec, counts: bool) -> ResourceEstimate:
    estimated = _estimate(config, spec, counts)
    shortage = estimated.find_shortage(free)
    if shortage is None:
        return estimated

    def fits(other: RunConfig) -> bool:
        return _estimate(other, resized(spec, config.env, other.env), counts).find_shortage(free) is None

    cause = largest_fitting(config, fits)
    if cause is None:
        large = _name_large_spaces(spec)
        raise UserError(f"this run would need {shortage}{large}; free some of it, or reduce several config values")
    key, value, largest = cause
    raise UserError(f"{key}={spell(value)}: this run would need {shortage}; the largest {key} that fits is {largest}")


def _name_large_spaces(spec: EnvSpec) -> str:
    """Return a phrase that lists observations and actions with more than 100,000 elements, largest first.

    Return "" if there are none.
    """
    sizes = {f"observation {key!r}": part.size for key, part in spec.obs.items()}
    sizes |= {f"choices of sub-action {i}": count for i, count in enumerate(spec.action.nvec)}
    if len(spec.action.nvec) == 1:
        sizes = {name.replace("choices of sub-action 0", "choices of the action"): size for name, size in sizes.items()}
    large = sorted(((size, name) for name, size in sizes.items() if size > LARGE), reverse=True)
    listed = ", ".join(f"{name}: {size:,}" for size, name in large)
    return f", mostly because of the large spaces of env.id={spec.id} ({listed})" if listed else ""


def _estimate(config: RunConfig, spec: EnvSpec, counts: bool) -> ResourceEstimate:
    if not counts:
        return estimate(config, spec)
    from rlcore.train.counting import count  # torch

    return estimate(config, spec, count(config, spec))


def _add_own_use(free: FreeResources, config: RunConfig, folder: Path) -> FreeResources:
    """Return the free resources plus those that the run already uses.

    These are the memory of this process, and the disk space of the run's checkpoints. If the run trains on GPUs, the
    free GPU memory is measured again.
    """
    own = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())
    free = dataclasses.replace(free, memory=free.memory + PROCESS, disk=free.disk + own)
    if not on_gpu(config):
        return free
    from rlcore.train.counting import gpu_memory  # torch

    return dataclasses.replace(
        free, device=min(filter(None, map(gpu_memory, config.fabric.indices or (0,))), default=None)
    )


def _may_be_large(config: RunConfig, spec: EnvSpec, free: FreeResources) -> bool:
    """Return True if the replay buffer or the networks might not fit, according to a rough upper bound.

    The bound for the buffer includes the copies of its rows on the disk. The bound for the networks assumes that all
    layers are as wide as the largest integer of the config, and includes their optimizer state and gradients.
    """
    if MEMORIES * config.algo.count_remembered(config) * row_bytes(spec) > min(free.memory, free.disk):
        return True
    values, groups = plain(config), (arguments(type(config.algo), "algo."), arguments(type(config.buffer), "buffer."))
    numbers = (at(values, argument.key) for group in groups for argument in group)
    largest = max((n for n in numbers if type(n) is int and n != config.algo.total_steps), default=0)
    wide = max([spec.action.flat_size, *(part.size for part in spec.obs.values())])  # width of a first or last layer
    return 4 * 4 * LAYERS * largest * max(largest, wide) > free.memory
