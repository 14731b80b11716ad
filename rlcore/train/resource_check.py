"""Check that this machine has enough memory, disk space and threads for a run, before the run allocates anything."""

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
MEMORIES = 8  # upper bound of the space of a replay buffer's rows, with files and checkpoints, in sizes of the buffer
LARGE = 100_000  # elements of an observation, or choices of an action, that the error message mentions
LAYERS = 16  # assumed number of layers as wide as the largest integer of the config; decides if the state is counted


def check_resources(config: RunConfig, spec: EnvSpec, folder: Path, begun: bool = False, command: bool = False) -> None:
    """Raise a UserError if a run needs more resources than this machine has.

    Args:
        config: config of the run.
        spec: spec of its environment.
        folder: run directory; need not exist.
        begun: True if this is the trainer process. Then torch is loaded, the algorithm's state is always counted, and
            the estimate is logged. Otherwise torch is only loaded, and the state counted, if config values are so
            large that the count can matter.
        command: True if a command started this process; the logged estimate then includes the command.

    Raises:
        UserError: If a resource is too small; gives the key, and the largest value that fits.
    """
    free = FreeResources.at(folder)
    if begun:
        free = _of_running(free, config, folder)
    whole = _refuse_beyond(free, config, spec, counts=False)  # the estimate without the algorithm's state is fast
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
        raise UserError(f"this run would need {short}{large}; free some of it, or reduce several config values")
    key, value, largest = blamed
    raise UserError(f"{key}={spell(value)}: this run would need {short}; the largest {key} that fits is {largest}")


def _name_large_spaces(spec: EnvSpec) -> str:
    """Return a phrase that names the large parts of an environment's spaces, largest first; "" if there are none."""
    sizes = {f"observation {key!r}": part.size for key, part in spec.obs.items()}
    sizes |= {f"choices of sub-action {i}": count for i, count in enumerate(spec.action.nvec)}
    if len(spec.action.nvec) == 1:
        sizes = {name.replace("choices of sub-action 0", "choices of the action"): size for name, size in sizes.items()}
    large = sorted(((size, name) for name, size in sizes.items() if size > LARGE), reverse=True)
    listed = ", ".join(f"{name}: {size:,}" for size, name in large)
    return f", mostly because of the large spaces of env.id={spec.id} ({listed})" if listed else ""


def _sum(config: RunConfig, spec: EnvSpec, counts: bool) -> ResourceEstimate:
    if not counts:
        return estimate(config, spec)
    from rlcore.train.counting import count  # torch

    return estimate(config, spec, count(config, spec))


def _of_running(free: FreeResources, config: RunConfig, folder: Path) -> FreeResources:
    """Return the free resources, plus those that the run itself already uses: its process and its checkpoints."""
    own = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*") if path.is_file())
    free = dataclasses.replace(free, memory=free.memory + PROCESS, disk=free.disk + own)
    if not on_gpu(config):
        return free
    from rlcore.train.counting import gpu_memory  # torch

    return dataclasses.replace(
        free, device=min(filter(None, map(gpu_memory, config.fabric.indices or (0,))), default=None)
    )


def _may_be_large(config: RunConfig, spec: EnvSpec, free: FreeResources) -> bool:
    """Return True if the replay buffer, or layers as wide as the largest integer of the config, might not fit.

    Rows of a replay buffer are in memory once and on the disk several times. Layers have an optimizer and gradients.
    """
    if MEMORIES * config.algo.count_remembered(config) * row_bytes(spec) > min(free.memory, free.disk):
        return True
    values, groups = plain(config), (arguments(type(config.algo), "algo."), arguments(type(config.buffer), "buffer."))
    numbers = (at(values, argument.key) for group in groups for argument in group)
    largest = max((n for n in numbers if type(n) is int and n != config.algo.total_steps), default=0)
    wide = max([spec.action.flat_size, *(part.size for part in spec.obs.values())])  # width of a first or last layer
    return 4 * 4 * LAYERS * largest * max(largest, wide) > free.memory
