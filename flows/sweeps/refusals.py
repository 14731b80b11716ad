"""Refusals before the first trial: a space whose ends and choices are no config, or do not run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flows.compare.records import task_of
from flows.config.compose import compose
from flows.runs.check import prepare
from flows.sweeps.pace import Pace
from flows.sweeps.plan import SweepPlan, merge
from flows.sweeps.space import Dimension, Params, to_overrides
from flows.tracking.mlflow_run import flat
from rlcore.config.groups import RunConfig
from rlcore.config.values import at, spell
from rlcore.errors import UserError

_GROUP = object()  # a group of config files is varied, which has no value in the config


class Checked(NamedTuple):
    """A checked plan's figures: the config where every key is at its first end, and the plan's pace."""

    first: RunConfig
    pace: Pace


def check_plan(plan: SweepPlan, elsewhere: bool = False) -> Checked:
    """Compose and check both ends, or every choice, of each key, the others at their first; nothing is written.

    `elsewhere`: neither device nor room is looked for here.
    """
    config = plan.config
    if config.sampler == "grid" and (without := next((d for d in plan.space if d.grid is None), None)):
        raise UserError(
            f"{without.key}={without.written}: a grid wants values that can be counted; write choice(…) or range(…)"
        )
    if config.sampler == "grid" and any(dimension.when for dimension in plan.space):
        raise UserError("sweep.sampler=grid: the space has keys with `when`, which a grid cannot; use tpe")
    tried: list[tuple[Params, RunConfig]] = []
    tasks: dict[str, list[str]] = {}
    for point in points(plan.space):
        made, values = _compose(plan, point)
        prepare(made, values, here=not elsewhere)
        tasks.setdefault(task_of(flat(values)), to_overrides(point))
        tried.append((point, made))
    _refuse_unlike(tasks, plan)
    if config.confirm_seeds:
        _refuse_unlike({**tasks, _task_of_default(plan, elsewhere): ["the default configuration"]}, plan)
    late = next((made for _, made in tried if made.evaluation_every > made.algo.total_steps), None)
    if late and config.objective != "final":
        raise UserError(
            f"evaluation.every={late.evaluation_every}: beyond algo.total_steps={late.algo.total_steps}, so no trial "
            "would have a value; sweep.objective=final takes the last evaluation"
        )
    return Checked(tried[0][1], Pace.of(tried))


def pace_of(plan: SweepPlan) -> Pace:
    """The pace of a plan that was checked by an earlier version, which has not noted it."""
    return Pace.of([(point, _compose(plan, point)[0]) for point in points(plan.space)])


class Default(NamedTuple):
    """The default configuration in a space.

    Attributes:
        values: of the keys that are varied, for trial 0; None if it cannot be a trial of the sweep.
        outside: those that the space does not contain, as one would type them; "" for a group of config files.
    """

    values: Params | None
    outside: dict[str, str]


def default_of(plan: SweepPlan) -> Default:
    """Return the default configuration, which is the preset's without what is varied.

    A grid has only the points that were typed, so the default configuration is not added to them.
    """
    found: Params = {}
    outside: dict[str, str] = {}
    try:
        _, values = compose(plan.base)
    except UserError:  # there is no default configuration
        return Default(None, {})
    for dimension in plan.space:
        if not dimension.present(found):
            continue
        value = at(values, dimension.key, _GROUP)
        if dimension.holds(value):
            found[dimension.key] = value
        else:
            outside[dimension.key] = "" if value is _GROUP else spell(value)
    return Default(None if outside or plan.config.sampler == "grid" else found, outside)


def describe_outside(plan: SweepPlan) -> str:
    """Return what trial 0 is if the space does not contain the default configuration; "" if it does."""
    written = {dimension.key: dimension.written for dimension in plan.space}
    reasons = ", ".join(
        f"{key}={value} is not in {written[key]}" if value else f"{key} is a group of files, whose default is unknown"
        for key, value in plan.outside.items()
    )
    return f"not the default configuration: {reasons}" if reasons else ""


def first_config(plan: SweepPlan) -> RunConfig:
    """The config of the point where every key is at its first end."""
    return _compose(plan, next(points(plan.space)))[0]


def points(space: list[Dimension]) -> Iterator[Params]:
    """The points that are tried: all keys at their first value, then each at its others; those that are there."""
    for varied in (None, *space):
        for value in varied.extremes[1:] if varied else (None,):
            point: Params = {}
            for dimension in space:
                wanted = value if dimension is varied else _first(dimension, varied)
                if dimension.present(point):
                    point[dimension.key] = wanted
            yield point


def _first(dimension: Dimension, varied: Dimension | None) -> object:
    """First value of a dimension, or the one with which the varied one is there."""
    return varied.when[dimension.key][0] if varied and dimension.key in varied.when else dimension.extremes[0]


def _compose(plan: SweepPlan, point: Params) -> tuple[RunConfig, dict[str, object]]:
    try:
        return compose(merge(plan.base, to_overrides(point)))
    except UserError as error:
        if named := next((d for d in plan.space if _is_about(error, d.key)), None):
            raise UserError(f"{error} ({named.key} is varied: {named.written})") from None
        if any(_is_about(error, line.partition("=")[0].lstrip("+~")) for line in plan.base):
            raise
        raise UserError(f"{error} (tried with {' '.join(to_overrides(point))})") from None


def _is_about(error: UserError, key: str) -> bool:
    """Tell whether a sentence names a key as the mistaken one."""
    return str(error).startswith((f"{key}=", f"unknown key '{key}'"))


def _task_of_default(plan: SweepPlan, elsewhere: bool) -> str:
    """Check the configuration that the winner is to be compared with: the same without what is varied."""
    try:
        config, values = compose(plan.base)
        prepare(config, values, here=not elsewhere)
    except UserError as error:
        raise UserError(
            f"the default configuration, beside which the winner is confirmed, is none: {error}; give the key a value "
            "in the preset, or sweep.confirm_seeds=0"
        ) from None
    return task_of(flat(values))


def _refuse_unlike(tasks: Mapping[str, Sequence[str]], plan: SweepPlan) -> None:
    """Refuse trials, or a default configuration, of several tasks (task -> the first point that has it)."""
    if len(tasks) < 2:
        return
    (one, first), (other, second) = list(tasks.items())[:2]
    apart = [line for line in second if line not in first] or second
    raise UserError(
        f"{' '.join(apart)}: its task is {other}, beside {one} of the others, and returns of unlike tasks cannot be "
        f"compared; one sweep for each{_tell_varied(apart, plan)}"
    )


def _tell_varied(lines: Sequence[str], plan: SweepPlan) -> str:
    """Tell which of some overrides are varied, in brackets."""
    keys = {line.partition("=")[0] for line in lines}
    written = [f"{d.key} is varied: {d.written}" for d in plan.space if d.key in keys]
    return f" ({', '.join(written)})" if written else ""
