"""Check that this machine has room for a run: its sum is held against what is free before anything of it is made."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from rlcore.config.groups import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import at, plain, spell
from rlcore.data.sizes import row_bytes
from rlcore.errors import UserError
from rlcore.spec import EnvSpec
from rlcore.system.free_memory import FreeResources
from rlcore.system.printable import DETAIL
from rlcore.train.largest import largest_fitting
from rlcore.train.memory_estimate import PROCESS, ResourceEstimate, estimate, on_gpu, resized

log = logging.getLogger(__name__)
MEMORIES = 8  # as large as a replay memory that its rows may take, in files and in the checkpoints that are kept
LARGE = 100_000  # numbers of an observation, or choices of an action
LAYERS = 16  # that may be as wide as the largest number of the config, before anybody counts


def check_resources(config: RunConfig, spec: EnvSpec, folder: Path, begun: bool = False, command: bool = False) -> None:
    """Refuse a run that this machine has no room for, before anything of it is made.

    Args:
        config: of the run.
        spec: of its environment.
        folder: of the run; need not be there yet.
        begun: this is the run's first process. Torch, which counts what an algorithm keeps, is there then; else it is
            loaded only where numbers of the config are so large that the count may decide. The sum is told.
        command: a command leads this process, so that the sum that is told includes it.

    Raises:
        UserError: names what there is too little of, the key that asks for so much, and the largest value that fits.
    """
    free = FreeResources.at(folder)
    if begun:
        free = _of_running(free, config, folder)
    whole = _refuse_beyond(free, config, spec, counts=False)  # first what is known at once
    if begun or _may_be_large(config, spec, free):
        whole = _refuse_beyond(free, config, spec, counts=True)
    if begun:
        log.info("%s", whole.sentence(free, command))
        for sentence in whole.details(free, command):
            log.info("%s", sentence, extra=DETAIL)


def _refuse_beyond(free: FreeResources, config: RunConfig, spec: EnvSpec, counts: bool) -> ResourceEstimate:
    whole = _sum(config, spec, counts)
    short = whole.find_shortage(free)
    if short is None:
        return whole
    fits = lambda other: _sum(other, resized(spec, config.env, other.env), counts).find_shortage(free) is None  # noqa: E731
    blamed = largest_fitting(config, fits)
    if blamed is None:
        large = _name_large_spaces(spec)
        raise UserError(f"this run would need {short}{large}; free some, or make several of its numbers smaller")
    key, value, largest = blamed
    raise UserError(f"{key}={spell(value)}: this run would need {short}; the largest {key} that fits is {largest}")


def _name_large_spaces(spec: EnvSpec) -> str:
    """Return words on the parts of an environment's spaces that are large, largest first; "" if none is."""
    sizes = {f"its observation {key!r}": part.size for key, part in spec.obs.items()}
    sizes |= {f"choices of sub-action {i}": count for i, count in enumerate(spec.action.nvec)}
    if len(spec.action.nvec) == 1:
        sizes = {name.replace("choices of sub-action 0", "choices of its action"): size for name, size in sizes.items()}
    large = sorted(((size, name) for name, size in sizes.items() if size > LARGE), reverse=True)
    told = ", ".join(f"{name}: {size:,}" for size, name in large)
    return f", most of it for numbers that env.id={spec.id} brings ({told})" if told else ""


def _sum(config: RunConfig, spec: EnvSpec, counts: bool) -> ResourceEstimate:
    if not counts:
        return estimate(config, spec)
    from rlcore.train.counting import count  # torch

    return estimate(config, spec, count(config, spec))


def _of_running(free: FreeResources, config: RunConfig, folder: Path) -> FreeResources:
    """The room of a run that has begun: its first process and its checkpoints are its own."""
    own = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())
    free = dataclasses.replace(free, memory=free.memory + PROCESS, disk=free.disk + own)
    if not on_gpu(config):
        return free
    from rlcore.train.counting import gpu_memory  # torch

    return dataclasses.replace(
        free, device=min(filter(None, map(gpu_memory, config.fabric.indices or (0,))), default=None)
    )


def _may_be_large(config: RunConfig, spec: EnvSpec, free: FreeResources) -> bool:
    """Tell whether a memory might not fit, or layers as wide as the largest number of the config.

    A memory's rows are in RAM once and on the disk several times, layers there with optimizer and gradient.
    """
    if MEMORIES * config.algo.count_remembered(config) * row_bytes(spec) > min(free.memory, free.disk):
        return True
    values, groups = plain(config), (arguments(type(config.algo), "algo."), arguments(type(config.buffer), "buffer."))
    numbers = (at(values, argument.key) for group in groups for argument in group)
    largest = max((n for n in numbers if type(n) is int and n != config.algo.total_steps), default=0)
    wide = max([spec.action.flat_size, *(part.size for part in spec.obs.values())])  # of a first or last layer
    return 4 * 4 * LAYERS * largest * max(largest, wide) > free.memory
