"""Checks before the first trial of a sweep.

For each varied key, both ends of its range or all of its choices must give valid configs that can run on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flows.compare.records import task_of
from flows.config.compose import compose
from flows.runs.check import prepare
from flows.sweeps.pace import TrialIntervals
from flows.sweeps.plan import SweepPlan, merge
from flows.sweeps.space import Dimension, Params, to_overrides
from flows.tracking.mlflow_run import flat
from rlcore.config.groups import RunConfig
from rlcore.config.values import at, spell
from rlcore.errors import UserError

_GROUP = object()  # stands for the value of a varied group of config files, which has none in the config


class Checked(NamedTuple):
    """Result of checking a plan: the config with the first value of every varied key, and the evaluation intervals."""

    first: RunConfig
    pace: TrialIntervals


def check_plan(plan: SweepPlan, elsewhere: bool = False) -> Checked:
    """Compose and check the configs of a sweep: both ends, or every choice, of each key, one key at a time.

    The other keys have their first value. Nothing is written. With `elsewhere`, the devices and the free memory and
    disk space of this machine are not checked.
    """
    config = plan.config
    if config.sampler == "grid" and (without := next((d for d in plan.space if d.grid is None), None)):
        raise UserError(
            f"{without.key}={without.written}: sweep.sampler=grid needs a finite list of values; write choice(…) or "
            "range(…)"
        )
    if config.sampler == "grid" and any(dimension.when for dimension in plan.space):
        raise UserError("sweep.sampler=grid: does not support keys with `when` in the space; use sweep.sampler=tpe")
    tried: list[tuple[Params, RunConfig]] = []
    tasks: dict[str, list[str]] = {}
    for point in points(plan.space):
        built, values = _compose(plan, point)
        prepare(built, values, here=not elsewhere)
        tasks.setdefault(task_of(flat(values)), to_overrides(point))
        tried.append((point, built))
    _refuse_unlike(tasks, plan)
    if config.confirm_seeds:
        _refuse_unlike({**tasks, _task_of_default(plan, elsewhere): ["the default configuration"]}, plan)
    late = next((built for _, built in tried if built.evaluation_every > built.algo.total_steps), None)
    if late and config.objective != "final":
        raise UserError(
            f"evaluation.every={late.evaluation_every}: exceeds algo.total_steps={late.algo.total_steps}, so trials "
            "would have no evaluation and no value; reduce it, or set sweep.objective=final to use the final evaluation"
        )
    return Checked(tried[0][1], TrialIntervals.of(tried))


class Default(NamedTuple):
    """Default configuration in relation to a space.

    Attributes:
        values: default values of the varied keys, which trial 0 uses; None if the sweep cannot have such a trial.
        outside: default values that the space does not contain, by key, as text; "" for a group of config files.
    """

    values: Params | None
    outside: dict[str, str]


def default_of(plan: SweepPlan) -> Default:
    """Return the default configuration: the values of the varied keys in the config before the sweep changes them.

    With the grid sampler, it is not added as a trial, because a grid consists only of its own combinations of values.
    """
    defaults: Params = {}
    outside: dict[str, str] = {}
    try:
        _, values = compose(plan.base)
    except UserError:  # the config is not valid without the varied keys
        return Default(None, {})
    for dimension in plan.space:
        if not dimension.present(defaults):
            continue
        value = at(values, dimension.key, _GROUP)
        if dimension.holds(value):
            defaults[dimension.key] = value
        else:
            outside[dimension.key] = "" if value is _GROUP else spell(value)
    return Default(None if outside or plan.config.sampler == "grid" else defaults, outside)


def describe_outside(plan: SweepPlan) -> str:
    """Return why trial 0 is not the default configuration; "" if the space contains the default configuration."""
    written = {dimension.key: dimension.written for dimension in plan.space}
    reasons = ", ".join(
        f"{key}={value} is not in {written[key]}" if value else f"the default of {key}, a group of files, is unknown"
        for key, value in plan.outside.items()
    )
    return f"not the default configuration: {reasons}" if reasons else ""


def first_config(plan: SweepPlan) -> RunConfig:
    """Return the config with the first value of every varied key."""
    return _compose(plan, next(points(plan.space)))[0]


def points(space: list[Dimension]) -> Iterator[Params]:
    """Yield the combinations of values to check.

    In the first one, all keys have their first value. In each of the others, one key has another value. A combination
    contains only keys that have no `when` condition or meet it.
    """
    for varied in (None, *space):
        for value in varied.extremes[1:] if varied else (None,):
            point: Params = {}
            for dimension in space:
                wanted = value if dimension is varied else _first(dimension, varied)
                if dimension.present(point):
                    point[dimension.key] = wanted
            yield point


def _first(dimension: Dimension, varied: Dimension | None) -> object:
    """Return the first value of a dimension, or the value that the `when` of the varied dimension requires."""
    return varied.when[dimension.key][0] if varied and dimension.key in varied.when else dimension.extremes[0]


def _compose(plan: SweepPlan, point: Params) -> tuple[RunConfig, dict[str, object]]:
    try:
        return compose(merge(plan.base, to_overrides(point)))
    except UserError as error:
        if named := next((d for d in plan.space if _is_about(error, d.key)), None):
            raise UserError(f"{error} ({named.key} is varied: {named.written})") from None
        if any(_is_about(error, line.partition("=")[0].lstrip("+~")) for line in plan.base):
            raise
        raise UserError(f"{error} (checked with {' '.join(to_overrides(point))})") from None


def _is_about(error: UserError, key: str) -> bool:
    """Return True if an error message starts with this key."""
    return str(error).startswith((f"{key}=", f"unknown key '{key}'"))


def _task_of_default(plan: SweepPlan, elsewhere: bool) -> str:
    """Check the default configuration, with which the winner is compared, and return its task.

    The task is the environment with the settings that change the meaning of returns.
    """
    try:
        config, values = compose(plan.base)
        prepare(config, values, here=not elsewhere)
    except UserError as error:
        raise UserError(
            f"the default configuration, which the winner is compared with, is not valid: {error}; set a default value "
            "of the key in the preset, or turn the confirmation off with sweep.confirm_seeds=0"
        ) from None
    return task_of(flat(values))


def _refuse_unlike(tasks: Mapping[str, Sequence[str]], plan: SweepPlan) -> None:
    """Raise UserError if the trials, including the default configuration, do not all have the same task.

    `tasks` maps each task to the overrides of the first trial that has this task.
    """
    if len(tasks) < 2:
        return
    (one, first), (other, second) = list(tasks.items())[:2]
    apart = [line for line in second if line not in first] or second
    raise UserError(
        f"{' '.join(apart)}: its task is {other}, but the task of the other trials is {one}; returns of different "
        f"tasks cannot be compared, so run one sweep for each task{_tell_varied(apart, plan)}"
    )


def _tell_varied(lines: Sequence[str], plan: SweepPlan) -> str:
    """Return a note in parentheses about the overrides that are varied; "" if none is."""
    keys = {line.partition("=")[0] for line in lines}
    written = [f"{d.key} is varied: {d.written}" for d in plan.space if d.key in keys]
    return f" ({', '.join(written)})" if written else ""
