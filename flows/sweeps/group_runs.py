"""Groups of runs: one run for each of several values of a config key, such as ten seeds.

All runs of a group have the same value of the key `group`, the group's name. `shepherd compare` accepts this name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.config.compose import compose, without_plugins
from flows.config.overrides import parse
from flows.config.yaml_files import groups
from flows.report.command_lines import short_path
from flows.runs.check import prepare
from flows.sweeps.jobs import Executor, Job, TrialRun, differing_config, train_jobs
from flows.sweeps.plan import merge
from flows.sweeps.space import Params, of_overrides, to_overrides
from rlcore.config.run import RunConfig
from rlcore.config.values import spell
from rlcore.errors import Mistakes, RunError, UserError

PLACES = ("run_dir", "run_name")


class RunGroup(NamedTuple):
    """Group of runs that differ in the values of one or several config keys, such as `seed`.

    Attributes:
        name: value of the key `group` in all runs.
        trainings: the runs, one for each combination of the keys' values.
        workers: number of runs that are trained at the same time.
        accelerator: `fabric.accelerator` of the runs.
    """

    name: str
    trainings: list[TrialRun]
    workers: int
    accelerator: str


def has_several(overrides: Sequence[str]) -> bool:
    """Return True if the overrides give several values for a key, such as `seed=0,1,2`."""
    return bool(parse(overrides, groups(), Mistakes()).sweeps)  # mistakes are reported when the config is composed


def group_of(overrides: Sequence[str], workers: int | None = None) -> RunGroup:
    """Compose and check the configs of a group of runs, and return the group. Nothing is written.

    Args:
        overrides: overrides of `shepherd train`, such as `exp=ppo seed=0,1,2 group=NAME`.
        workers: number of runs that are trained at the same time; None = number of processor cores / `num_threads`.

    Returns:
        The group.

    Raises:
        UserError: A config is invalid, or the folder of a run contains a run that was trained with other settings.
    """
    overrides = without_plugins(overrides)
    taken_apart = parse(overrides, groups())
    given = {setting.key_or_group: setting.value() for setting in taken_apart.settings}
    keys = [sweep.key_or_group for sweep in taken_apart.sweeps]
    name = given.get("group")
    if not name:
        line = taken_apart.sweeps[0].input_line or ""
        as_list = "" if "(" in line else f", or write {keys[0]}=[{line.partition('=')[2]}] if one list is meant"
        raise UserError(f"{line}: gives several values; add group=NAME to train one run for each value{as_list}")
    if place := next((key for key in PLACES if key in given), None):
        raise UserError(
            f"{place}={spell(given[place])}: cannot be set for a group, because the name of the group determines the "
            f"folders of the runs; remove {place}"
        )
    base = [override for override in overrides if override.partition("=")[0].lstrip("+") not in keys]
    trainings, config, tried = [], None, []
    for point in _points(overrides):
        label = ",".join(f"{key.rpartition('.')[2]}={spell(value)}" for key, value in point.items())
        line = merge(base, [*to_overrides(point), f"run_name='{name}/{label}'"])
        config, values = compose(line)
        if (others := {key: value for key, value in point.items() if key != "seed"}) not in tried:
            prepare(config, values)
            tried.append(others)
        training = TrialRun(Path(config.run_dir).absolute(), tuple(line))
        _refuse_other(training, config, str(name))
        trainings.append(training)
    assert config is not None
    if len({training.run_dir for training in trainings}) < len(trainings):
        raise UserError(
            f"group={name}: two runs of this group would have the same folder. The name of a folder consists of the "
            f"last part of each varied key and its value (keys: {', '.join(keys)}); list each value only once"
        )
    at_once = workers or max(1, (os.cpu_count() or 1) // config.num_threads)
    return RunGroup(str(name), trainings, min(at_once, len(trainings)), config.fabric.accelerator)


def run_jobs(group: RunGroup, executor: Executor) -> Iterator[Job]:
    """Yield the unfinished runs of a group, each when a worker is free to train it.

    The caller must start each run. The iterator ends when all runs have ended. If a run fails, the others continue, and
    a RunError with the message of the first failure is raised at the end.
    """
    jobs = (Job(training.run_dir.name, [training]) for training in group.trainings if training.state != "over")
    failed = yield from train_jobs(executor, jobs)
    if failed:
        job, end = failed[0]
        raise RunError(
            f"{len(failed)} of {len(group.trainings)} runs of group {group.name} failed; {job.label}: {end.sentence}"
        )


def _points(overrides: Sequence[str]) -> Iterator[Params]:
    """Yield every combination of the values in overrides such as `seed=0,1`; the last key's value changes fastest."""
    dimensions = of_overrides(parse(overrides, groups()).sweeps)
    for dimension in dimensions:
        if dimension.grid is None:
            raise UserError(
                f"{dimension.key}={dimension.written}: a group needs a finite list of values; list them, or use "
                "`shepherd sweep` to search an interval"
            )
    values = [[dimension.to_config(value) for value in dimension.grid or ()] for dimension in dimensions]
    for chosen in itertools.product(*values):
        yield dict(zip((dimension.key for dimension in dimensions), chosen, strict=True))


def _refuse_other(training: TrialRun, config: RunConfig, name: str) -> None:
    if training.run.config.exists() and (other := differing_config(training.run, config)):
        key, old, new = other
        raise UserError(
            f"{key}={spell(new)}: run {short_path(training.run_dir)} of group {name} was trained with "
            f"{key}={spell(old)}; choose another group name"
        )
