"""Preset and confirmation of the winner, the best trial of a sweep.

The preset is a file with the winner's configuration. If the file's config folder is in SHEPHERD_SEARCH_PATH,
`exp=<sweep>_best` selects the preset. For the confirmation, the winner and the default configuration are trained and
compared on the same new seeds, because the values of the trials were used to choose the winner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import yaml

from flows.compare import statistics
from flows.compare.selection import FEWEST
from flows.config.compose import compose
from flows.config.overrides import parse
from flows.config.yaml_files import groups
from flows.report.command_lines import bin_folder, short_path
from flows.report.sentences import between, number, sign
from flows.runs.create import change_run
from flows.runs.listeners import emit
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import FAULTS, Job, TrialRun, iqm, train_jobs, trainings
from flows.sweeps.plan import merge
from flows.sweeps.space import to_overrides
from flows.sweeps.study import CONFIRMATION
from flows.tasks import register_model
from rlcore.config.values import at
from rlcore.errors import RunError
from rlcore.store.directory import write_json, write_text

QUIET = ("env.capture_video=false",)  # default of the confirmation's runs


def best_preset(sweep: Sweep) -> None:
    """Write a preset file with the configuration of a sweep's best trial; do nothing if no trial was completed."""
    best = sweep.study.best()
    if best is None:
        return
    comment = (
        f"The best of {len(sweep.study.trials)} trials of sweep {sweep.folder.name}: trial {best.number}, "
        f"value {best.value:.6g}. {'It was not confirmed on new seeds.' if not sweep.config.confirm_seeds else ''}"
    )
    overrides = merge(sweep.plan.base, to_overrides(sweep.study.params(best.number)))
    write_text(sweep.folder.preset, preset(overrides, comment.strip()))


def preset(overrides: Sequence[str], comment: str) -> str:
    """Return the YAML text of a preset `P`, so that `exp=P` gives the same config as a list of overrides.

    Args:
        overrides: the overrides, which include `exp=`.
        comment: comment in the first line of the preset.

    Returns:
        The text.
    """
    taken_apart, (_, values) = parse(overrides, groups()), compose(overrides)
    chosen = dict(choice.lstrip("+").split("=", 1) for choice in taken_apart.choices)
    defaults = [chosen.pop("exp"), *({f"override /{group}": name} for group, name in chosen.items()), "_self_"]
    settings: dict[str, Any] = {}
    for setting in taken_apart.settings:
        *parts, last = setting.key_or_group.split(".")
        branch = settings
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[last] = at(values, setting.key_or_group)
    body = yaml.safe_dump({"defaults": defaults}, sort_keys=False) + "\n"
    body += yaml.safe_dump(settings, sort_keys=False, allow_unicode=True) if settings else ""
    return f"# @package _global_\n\n# {comment}\n{body}"


def train_command(folder: SweepFolder) -> str:
    """Return the `shepherd train` command that uses the preset with the best configuration of a sweep."""
    where = f"SHEPHERD_SEARCH_PATH={short_path(folder.conf)}"
    return f"{where} {bin_folder()}shepherd train exp={folder.preset.stem}"


def confirm(sweep: Sweep) -> Iterator[Job]:
    """Yield the runs that compare the winner (best trial) of a sweep with the default configuration.

    Whenever a worker is free, the iterator yields a run, which the caller must start. The iterator ends when all runs
    have ended. If a run fails, its error is raised after the other runs have ended.
    """
    wanted = sides(sweep)
    if wanted:
        emit("phase", {"doing": "confirmation", "total": 2 * len(wanted["winner"])})
    runs = itertools.chain.from_iterable(zip(*wanted.values(), strict=True))
    jobs = (Job(f"{run.run_dir.parent.name}, {run.run_dir.name.replace('_', ' ')}", [run]) for run in runs)
    failed = yield from train_jobs(sweep.executor, jobs)
    if failed:
        job, end = failed[0]
        raise FAULTS.get(end.fault, RunError)(
            f"sweep {sweep.folder.name}: the confirmation of the winner failed: {job.label}: {end.sentence}"
        )


def sides(sweep: Sweep) -> dict[str, list[TrialRun]]:
    """Return the runs that compare a sweep's best trial with the default configuration.

    The result maps "winner" (best trial) and "default" to their runs, in the order of the seeds. It is empty if no
    trial was completed or `sweep.confirm_seeds` is 0.
    """
    best = sweep.study.best()
    if best is None or not sweep.config.confirm_seeds:
        return {}
    seeds = sweep.study.seeds(CONFIRMATION, sweep.config.confirm_seeds)
    base = merge(merge(QUIET, sweep.plan.base), ["model_manager.disabled=true"])
    values, name = to_overrides(sweep.study.params(best.number)), sweep.folder.name
    return {
        "winner": trainings(sweep.runs / f"winner_{best.number:04d}", merge(base, values), seeds, f"{name}-winner"),
        "default": trainings(sweep.runs / "default", base, seeds, f"{name}-default"),
    }


def verdict(sweep: Sweep) -> None:
    """Compare the winner (best trial) of a sweep with the default configuration and store the result.

    The values of the confirmation runs are compared. If the winner is better, its best confirmation run is registered
    as a model.
    """
    best, runs = sweep.study.best(), sides(sweep)
    if best is None or not runs:
        return
    values = {side: [training.value(sweep.config, sweep.pace) for training in its] for side, its in runs.items()}
    seeds = [int(training.run_dir.name.removeprefix("seed_")) for training in runs["winner"]]
    found = compare_with_default(values["winner"], values["default"])
    emit("stage", {"doing": f"confirmation: {found['words']}"})
    model = None
    if found["better"]:
        chosen = max(zip(values["winner"], runs["winner"], strict=True), key=lambda one: one[0])[1]
        change_run(chosen.run, ["model_manager.disabled=false"])
        model = register_model(chosen.run)
    write_json(
        sweep.folder.confirmed, {"trial": best.number, "seeds": seeds, "values": values, **found, "model": model}
    )


def compare_with_default(winner: Sequence[float], default: Sequence[float]) -> dict[str, Any]:
    """Compare a sweep's winner with the default configuration, by the interquartile means over their runs.

    Args:
        winner: values of the winner's runs, one per seed.
        default: values of the default configuration's runs, for the same seeds in the same order.

    Returns:
        A mapping with the keys

        - winner, default, difference: the two interquartile means and their difference.
        - low, high: 95 % bootstrap interval of the difference.
        - better: True if the interval is above 0.
        - words: the result in a sentence.

        With fewer than `FEWEST` seeds, `better`, `low` and `high` are None.
    """
    means = {"winner": iqm(winner), "default": iqm(default)}
    difference = means["winner"] - means["default"]
    measure = f"interquartile mean of the runs' values over {len(winner)} new seeds"
    returns = f"winner {number(means['winner'])}, default {number(means['default'])} ({measure})"
    if len(winner) < FEWEST:
        words = f"undecided: {returns}; a comparison needs at least {FEWEST} seeds (sweep.confirm_seeds)"
        return {"better": None, **means, "difference": difference, "low": None, "high": None, "words": words}
    low, high = interval(winner, default)
    verb = "better than" if low > 0 else "worse than" if high < 0 else "not better than"
    noise = "contains" if low <= 0 <= high else "does not contain"
    words = (
        f"the winner is {verb} the default configuration: {returns}, difference {sign(difference)}; its 95 % interval "
        f"{between(low, high)} {noise} 0"
    )
    return {"better": low > 0, **means, "difference": difference, "low": low, "high": high, "words": words}


def interval(winner: Sequence[float], default: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the difference of two interquartile means.

    The i-th values of `winner` and `default` have the same seed and are resampled together.
    """
    sides, rng = ([np.array(winner)], [np.array(default)]), np.random.default_rng(0)
    found = statistics.difference(*sides, statistics.iqm, rng, paired=True)
    return float(found.low), float(found.high)
