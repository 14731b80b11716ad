"""Creation and change of sweeps, and the checks before the first trial.

For each varied key, both ends of its range or all of its choices must give valid configs that can run on this machine.
This module does not import Prefect. The import creates Prefect's folder, which must not happen if the sweep is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.compare.records import task_of
from flows.config.compose import compose
from flows.runs.check import prepare
from flows.sweeps.folder import SweepFolder, refuse_password
from flows.sweeps.plan import LATER, SweepConfig, SweepPlan, TrialIntervals, change, merge, plan
from flows.sweeps.space import Dimension, Params, to_overrides
from flows.sweeps.study import TRAINING, Study, seed_of
from flows.tracking.mlflow_run import flat
from rlcore.config.callbacks import may_log
from rlcore.config.info_keys import EVALUATION, GAME, read_info_keys
from rlcore.config.run import RunConfig
from rlcore.config.values import at, nearest, plain, spell
from rlcore.errors import UserError
from rlcore.store.series import EPISODE_RETURN

_GROUP = object()  # stands for the value of a varied group of config files, which has none in the config


def new_sweep(overrides: Sequence[str], elsewhere: bool = False) -> tuple[str, SweepFolder]:
    """Check and store the sweep that the arguments of `shepherd sweep` define.

    Args:
        overrides: arguments of `shepherd sweep`. If a sweep with this `sweep.name` exists already, its settings must be
            equal.
        elsewhere: True if other machines train the sweep; the devices and free memory of this machine are then not
            checked.

    Returns:
        Name of the algorithm, and the folders of the sweep.
    """
    wanted = plan(overrides)
    refuse_password(wanted)
    config, pace = check_plan(wanted, elsewhere)
    folder = SweepFolder(wanted.config.name)
    runs = Path(config.log_root).absolute() / "sweeps" / folder.name
    if folder.adopt(runs):  # existing runs must belong to the same trials
        _refuse_other(folder, wanted)
    else:
        folder.check_storage(wanted)
    default = default_of(wanted)
    folder.write(dataclasses.replace(wanted, pace=pace, default=default.values, outside=default.outside), runs)
    return config.algo.name, folder


def change_sweep(name: str, overrides: Sequence[str], failed: bool = False) -> tuple[str, SweepFolder]:
    """Change the settings of an existing sweep before it is resumed.

    Args:
        name: name of the sweep.
        overrides: new settings, such as `sweep.trials=40`.
        failed: True resets failed trials, so that they are trained again.

    Returns:
        Name of the algorithm, and the folders of the sweep.
    """
    folder = SweepFolder.existing(name)
    there = folder.read()
    with folder.driving():
        made = dataclasses.replace(there, config=change(there.config, overrides))
        config, pace = check_plan(made)
        folder.write(dataclasses.replace(made, pace=pace), folder.runs)
        if failed:
            _take_up_failed(folder, made)
    return config.algo.name, folder


def _take_up_failed(folder: SweepFolder, plan: SweepPlan) -> None:
    """Replace the sweep's Optuna study by a copy in which failed trials have the state of unfinished trials."""
    study, copies = Study(plan, folder.storage(plan), folder.study_name(plan)), folder.copies + 1
    if not study.list_failed():
        raise UserError(f"--failed: no trial of sweep {folder.name} has failed; remove --failed")
    study.copy(folder.study_name(plan, copies))
    folder.note_copies(copies)  # after this line the copy is used, even if this process is killed
    study.delete()


def _refuse_other(folder: SweepFolder, wanted: SweepPlan) -> None:
    """Raise UserError if `wanted` has other settings than the existing sweep with the same name."""
    there = folder.read()
    before, now = plain(there.config), plain(wanted.config)
    for key in before.keys() - set(LATER):
        if before[key] != now[key] and key not in ("overrides", "space"):
            raise UserError(
                f"sweep.{key}={spell(now[key])}: sweep {folder.name} exists with {key}={spell(before[key])}; choose "
                f"another sweep.name, or resume the existing sweep: {folder.resume_command}"
            )
    if (there.base, there.space) != (wanted.base, wanted.space):
        raise UserError(
            f"sweep.name={folder.name}: a sweep of this name exists with other overrides or another space; choose "
            f"another name, or resume the existing sweep: {folder.resume_command}"
        )


class Checked(NamedTuple):
    """Result of checking a sweep's plan.

    Attributes:
        first: config in which each varied key has the first value of its range or choices.
        pace: intervals at which the trials of the sweep are evaluated.
    """

    first: RunConfig
    pace: TrialIntervals


def check_plan(plan: SweepPlan, elsewhere: bool = False) -> Checked:
    """Compose and check configs with the extreme values of a sweep's search space.

    One key at a time is set to both ends of its range, or to each of its choices; the other keys keep their first
    value. Nothing is written.

    Args:
        plan: plan of the sweep.
        elsewhere: True if other machines train the sweep. Devices, free memory and disk space of this machine are then
            not checked.

    Returns:
        The first config, and the evaluation intervals of the sweep.

    Raises:
        UserError: A config is invalid, the trials would have different tasks, or the grid sampler cannot be used.
    """
    config = plan.config
    if config.sampler == "grid" and (without := next((d for d in plan.space if d.grid is None), None)):
        raise UserError(
            f"{without.key}={without.written}: sweep.sampler=grid needs a finite list of values; write choice(…) or "
            "range(…)"
        )
    if config.sampler == "grid" and any(dimension.when for dimension in plan.space):
        raise UserError("sweep.sampler=grid: does not support keys with `when` in the space; use sweep.sampler=tpe")
    try:
        return _check_points(plan, elsewhere)
    except UserError as error:
        typed, derived = (f"{key}={config.budget}:" for key in ("sweep.budget", "algo.total_steps"))
        if derived not in str(error):
            raise
        raise UserError(str(error).replace(derived, typed)) from None


def _check_points(plan: SweepPlan, elsewhere: bool) -> Checked:
    """Check the points of the search space; see `check_plan`."""
    config = plan.config
    tried: list[tuple[Params, RunConfig]] = []
    tasks: dict[str, list[str]] = {}
    for point in points(plan.space):
        composed, values = _compose(plan, point)
        built, _, _ = prepare(composed, values, here=not elsewhere)
        tasks.setdefault(task_of(flat(values)), to_overrides(point))
        tried.append((point, built))
    _refuse_unlike(tasks, plan)
    if config.confirm_seeds:
        _refuse_unlike({**tasks, _task_of_default(plan, elsewhere): ["the default configuration"]}, plan)
    if any(built.algo.total_steps is None for _, built in tried):
        raise UserError("algo.total_steps=null: trials of a sweep need a budget; set algo.total_steps or sweep.budget")
    late = next((built for _, built in tried if built.evaluation_every > built.algo.step_limit), None)
    if late and config.objective != "final":
        raise UserError(
            f"evaluation.every={late.evaluation_every}: exceeds algo.total_steps={late.algo.total_steps}, so trials "
            "would not be evaluated during training and would have no value to optimize; reduce evaluation.every, or "
            "set sweep.objective=final to use the evaluation after training"
        )
    if config.quantity.name is not None:
        for _, built in tried:
            _refuse_other_metric(config, built)
    return Checked(tried[0][1], TrialIntervals.of(tried))


def _refuse_other_metric(sweep: SweepConfig, config: RunConfig) -> None:
    """Raise UserError if neither `env.info_keys` nor a callback can give the objective of a trial."""
    metric, names = sweep.metric, [key.name for key in read_info_keys(config.env.info_keys)]
    if metric in names:
        return
    if (name := metric.removeprefix(GAME).removeprefix(EVALUATION)) in names:
        raise UserError(f"sweep.metric={metric}: must be the name without its prefix; set sweep.metric={name}")
    if not (config.callbacks and may_log(metric)):
        advice = nearest(metric, [EPISODE_RETURN.words, *names])
        if not advice and may_log(metric) and name == metric:
            keys = ",".join([*config.env.info_keys, metric])
            advice = f"; add env.info_keys=[{keys}] if info contains it, or callbacks=[…] if a callback logs it"
        raise UserError(
            f"sweep.metric={metric}: must be return, a number that env.info_keys selects, or a metric that a callback "
            f"logs in on_evaluation{advice}"
        )
    if config.metric.log_level == 0:
        raise UserError(f"metric.log_level=0: {metric} (sweep.metric) would not be logged; set metric.log_level=1")
    if sweep.objective == "final":
        raise UserError(
            f"sweep.objective=final: callbacks are not called after the final evaluation, so they cannot log {metric} "
            "(sweep.metric); set sweep.objective=last or sweep.objective=all"
        )


class Default(NamedTuple):
    """Default configuration of a sweep: the config before the sweep changes the varied keys.

    Attributes:
        values: default values of the varied keys, which trial 0 uses; None if no trial can have these values.
        outside: key -> default value, as text, for each default value that is not in the search space. The text is ""
            if the key is a group of config files.
    """

    values: Params | None
    outside: dict[str, str]


def default_of(plan: SweepPlan) -> Default:
    """Return the default configuration of a sweep: the varied keys' values in the config that the sweep starts from.

    With the grid sampler, `Default.values` is None: a grid has a fixed list of combinations, so the default
    configuration cannot be added as trial 0.
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
    """Return a text that explains why trial 0 does not have the default configuration of the sweep.

    Returns "" if all default values are in the search space.
    """
    written = {dimension.key: dimension.written for dimension in plan.space}
    reasons = ", ".join(
        f"{key}={value} is not in {written[key]}" if value else f"the default of {key}, a group of files, is unknown"
        for key, value in plan.outside.items()
    )
    return f"not the default configuration: {reasons}" if reasons else ""


def first_config(plan: SweepPlan) -> RunConfig:
    """Return the config in which each varied key has the first value of its range or choices."""
    return _compose(plan, next(points(plan.space)))[0]


def points(space: list[Dimension]) -> Iterator[Params]:
    """Yield the combinations of values that are checked before the first trial of a sweep.

    In the first combination, each key has the first value of its range or choices. In each further combination, one key
    has another value. A key with a `when` condition is omitted from combinations that do not meet the condition.
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
    """Return the first value of a key, or the value that the `when` condition of the checked key `varied` requires."""
    return varied.when[dimension.key][0] if varied and dimension.key in varied.when else dimension.extremes[0]


def _compose(plan: SweepPlan, point: Params) -> tuple[RunConfig, dict[str, object]]:
    try:
        seed = f"seed={seed_of(plan.config, TRAINING, 0)}"  # a run to extend may not fit another seed
        return compose(merge(plan.base, [*to_overrides(point), seed]))
    except UserError as error:
        if named := next((d for d in plan.space if _is_about(error, d.key)), None):
            raise UserError(f"{error} ({named.key} is varied: {named.written})") from None
        if any(_is_about(error, line.partition("=")[0].lstrip("+~")) for line in plan.base):
            raise
        raise UserError(f"{error} (in a trial with {' '.join(to_overrides(point))})") from None


def _is_about(error: UserError, key: str) -> bool:
    """Return True if an error message is about this key, that is, starts with `key=` or "unknown key 'key'"."""
    return str(error).startswith((f"{key}=", f"unknown key '{key}'"))


def _task_of_default(plan: SweepPlan, elsewhere: bool) -> str:
    """Check the default configuration, and return its task: environment and settings that change returns."""
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
    """Raise UserError if `tasks` (task -> overrides of its first checked config) contains more than one task."""
    if len(tasks) < 2:
        return
    (one, first), (other, second) = list(tasks.items())[:2]
    apart = [line for line in second if line not in first] or second
    raise UserError(
        f"{' '.join(apart)}: its task is {other}, but the task of the other trials is {one}; returns of different "
        f"tasks cannot be compared, so run one sweep for each task{_describe_varied(apart, plan)}"
    )


def _describe_varied(lines: Sequence[str], plan: SweepPlan) -> str:
    """Return a note in parentheses that lists which keys of these overrides the sweep varies; "" if none."""
    keys = {line.partition("=")[0] for line in lines}
    written = [f"{d.key} is varied: {d.written}" for d in plan.space if d.key in keys]
    return f" ({', '.join(written)})" if written else ""
