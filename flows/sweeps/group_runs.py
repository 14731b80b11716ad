"""A group: the same training for each of several values, as ten seeds, under one name that compares it with others."""

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
from flows.sweeps.jobs import Hands, Job
from flows.sweeps.plan import merge
from flows.sweeps.space import Params, of_overrides, to_overrides
from flows.sweeps.trial import TrialRun, otherwise
from rlcore.config.groups import RunConfig
from rlcore.config.values import spell
from rlcore.errors import Mistakes, RunError, UserError

PLACES = ("run_dir", "run_name")


class Group(NamedTuple):
    """Runs under one name.

    Attributes:
        name: the key `group` of all of them.
        trainings: one for each value, or for each of all combinations.
        workers: how many are trained at once.
        accelerator: where their networks live.
    """

    name: str
    trainings: list[TrialRun]
    workers: int
    accelerator: str


def has_several(overrides: Sequence[str]) -> bool:
    """Tell whether a key has several values."""
    return bool(parse(overrides, groups(), Mistakes()).sweeps)  # what is wrong is told with the rest of the config


def group_of(overrides: Sequence[str], workers: int | None = None) -> Group:
    """The group that was typed, as `exp=ppo seed=0,1,2 group=NAME`, each of its configs checked; nothing is written.

    By default as many runs at once as there are processor cores for. A `UserError` also where a run of this name is
    there that learns something else.
    """
    overrides = without_plugins(overrides)
    taken_apart = parse(overrides, groups())
    given = {setting.key_or_group: setting.value() for setting in taken_apart.settings}
    keys = [sweep.key_or_group for sweep in taken_apart.sweeps]
    name = given.get("group")
    if not name:
        line = taken_apart.sweeps[0].input_line or ""
        as_list = "" if "(" in line else f"; a list is written {keys[0]}=[{line.partition('=')[2]}]"
        raise UserError(f"{line}: several values; add group=NAME to train one run for each{as_list}")
    if place := next((key for key in PLACES if key in given), None):
        raise UserError(f"{place}={spell(given[place])}: the runs of a group have folders of their own, by its name")
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
            f"group={name}: two of its runs would have one folder; {', '.join(keys)} differ in the last word"
        )
    at_once = workers or max(1, (os.cpu_count() or 1) // config.num_threads)
    return Group(str(name), trainings, min(at_once, len(trainings)), config.fabric.accelerator)


def hand_out(group: Group, hands: Hands) -> Iterator[Job]:
    """The runs to be started, each as soon as there is a hand free, until all have ended.

    A run that fails does not end the others; at the end a `RunError` says which have.
    """
    failures: list[str] = []

    def wait() -> None:
        job, end = hands.wait()
        if end.state in ("failed", "unfinished"):
            failures.append(f"{job.label}: {end.sentence}")

    for training in group.trainings:
        if training.state == "over":
            continue
        while not hands.free:
            wait()
        yield Job(training.run_dir.name, [training])
    while hands.busy:
        wait()
    if failures:
        raise RunError(f"{len(failures)} of {len(group.trainings)} runs of group {group.name} failed; {failures[0]}")


def _points(overrides: Sequence[str]) -> Iterator[Params]:
    """Every combination of the values, the first key's slowest."""
    dimensions = of_overrides(parse(overrides, groups()).sweeps)
    for dimension in dimensions:
        if dimension.grid is None:
            raise UserError(
                f"{dimension.key}={dimension.written}: a group wants values that can be counted; `shepherd sweep` "
                "searches an interval"
            )
    values = [[dimension.to_config(value) for value in dimension.grid or ()] for dimension in dimensions]
    for chosen in itertools.product(*values):
        yield dict(zip((dimension.key for dimension in dimensions), chosen, strict=True))


def _refuse_other(training: TrialRun, config: RunConfig, name: str) -> None:
    if training.run.config.exists() and (other := otherwise(training.run, config)):
        key, old, new = other
        raise UserError(
            f"{key}={spell(new)}: {short_path(training.run_dir)} of group {name} learned with {spell(old)}; choose "
            "another group"
        )
