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
from rlcore.config.values import at
from rlcore.errors import UserError


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


def default_of(plan: SweepPlan) -> Params | None:
    """The values of the default configuration, that without what is varied; None where the space does not hold them.

    A grid has the points that were typed, and no other.
    """
    if plan.config.sampler == "grid":
        return None
    found: Params = {}
    try:
        _, values = compose(plan.base)
        for dimension in plan.space:
            if dimension.present(found):
                found[dimension.key] = at(values, dimension.key)
                if not dimension.holds(found[dimension.key]):
                    return None
    except UserError:  # there is none
        return None
    return found


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
