"""Plan of a sweep, read from a preset in conf/sweep and the arguments of `shepherd sweep`."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flows.config.compose import without_plugins
from flows.config.mistakes import one_line
from flows.config.overrides import parse
from flows.config.yaml_files import config_folders, groups
from flows.sweeps import space
from flows.sweeps.space import Dimension, Params
from rlcore.config.build import build
from rlcore.config.run import RunConfig
from rlcore.config.schema import Needs, arg
from rlcore.config.values import nearest, plain
from rlcore.errors import UserError
from rlcore.store.checkpoint import policy_steps
from rlcore.store.series import EPISODE_RETURN, Quantity

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# Keys of a run that cannot be set in a sweep, and why.
OURS = {
    "seed": "cannot be set in a sweep, because seeds are derived from sweep.seed; set sweep.seed",
    "run_dir": "cannot be set in a sweep, because sweep.name determines the folders of its runs; set sweep.name",
    "run_name": "cannot be set in a sweep, because sweep.name determines the folders of its runs; set sweep.name",
    "root_dir": "cannot be set in a sweep, because its runs are in <log_root>/sweeps/<sweep.name>; set log_root",
    "group": "cannot be set in a sweep, because the group of its runs is sweep.name; set sweep.name",
    "checkpoint.resume_from": "cannot be set in a sweep, because trials are always trained from the beginning",
}


@dataclass(frozen=True)
class SweepConfig:
    """Configuration of a sweep, the keys `sweep.*`."""

    name: str = arg("", "name of the sweep, its folder and its study; default <preset>_<time>")
    trials: int = arg(20, "number of trials", low=1)
    workers: int = arg(2, "number of trials that run at a time", low=1)
    seeds: int = arg(
        1, "number of training seeds of each trial; its value is the interquartile mean over the seeds", low=1
    )
    sampler: str = arg("tpe", "method that chooses the values of a trial", choices=("tpe", "gp", "random", "grid"))
    startup: int = arg(10, "number of random trials before tpe, gp and the median pruner start", low=0)
    pruner: str = arg("median", "method that ends bad trials early", choices=("median", "halving", "hyperband", "none"))
    warmup: int = arg(
        2,
        "number of evaluations of a trial before the median pruner may end it",
        low=0,
        needs=Needs("pruner", lambda pruner: pruner == "median", "=median"),
    )
    objective: str = arg(
        "last",
        "value of a run: mean of sweep.metric in its last evaluations, in all (learning speed), or in the final one",
        choices=("last", "all", "final"),
    )
    last: int = arg(
        3,
        "for objective=last: average the evaluations of the last `last` × evaluation.every policy steps",
        low=1,
        needs=Needs("objective", lambda objective: objective == "last", "=last"),
    )
    metric: str = arg(
        EPISODE_RETURN.words,
        "what a run is judged by: return, a number of env.info_keys, or a callback's metric; the larger the better",
    )
    budget: int | None = arg(None, "policy steps of each run; null: algo.total_steps of the preset", low=1)
    mode: str = arg(
        "batch",
        "batch: reproducible from sweep.seed; async: choose each trial from all results available at that time",
        choices=("batch", "async"),
    )
    batch: int = arg(
        4,
        "trials in a batch, at least sweep.workers; a trial is chosen from the results of earlier batches",
        low=1,
        needs=Needs("mode", lambda mode: mode == "batch", "=batch"),
    )
    seed: int = arg(42, "seed from which the seeds of the sampler and of all runs are derived", low=0)
    storage: str | None = arg(
        None, "URL of Optuna's database, e.g. postgresql+psycopg2://…; null: SHEPHERD_SWEEP_STORAGE or a SQLite file"
    )
    confirm_seeds: int = arg(
        10, "number of new seeds on which the winner is compared with the default configuration; 0: off", low=0
    )
    overrides: tuple[str, ...] = arg((), "overrides of every run, written as for `shepherd train`")
    space: dict[str, Any] = arg({}, "search space: key -> range or choices of its values (docs/sweeps.md)")

    def check(self, prefix: str) -> None:
        """Raise UserError if `batch`, the number of trials in a batch, is less than `workers`."""
        if self.mode == "batch" and self.workers > self.batch:
            raise UserError(
                f"{prefix}workers={self.workers}: must not exceed the {self.batch} trials of a batch, because some "
                f"workers would always be idle; set {prefix}batch={self.workers}, or {prefix}mode=async"
            )

    @property
    def quantity(self) -> Quantity:
        """Quantity that `metric` names."""
        return EPISODE_RETURN if self.metric == EPISODE_RETURN.words else Quantity(self.metric)


# Keys that may change when a sweep is resumed: none of them changes the values of its trials.
LATER = ("trials", "workers", "confirm_seeds")


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep: its settings, the overrides of its runs, and its search space.

    Attributes:
        config: the keys `sweep.*`; `name` is never empty.
        base: overrides of every run, including `exp=`.
        space: the varied keys with their ranges or choices; the keys of the preset come first.
        pace: intervals at which trials are evaluated; None until `check_plan` has computed it.
        default: values of the varied keys in the default configuration, which trial 0 uses; None if a default value is
            not in the search space, or if the sampler is "grid".
        outside: key -> default value, as text, for each default value that is not in the search space.
    """

    config: SweepConfig
    base: list[str]
    space: list[Dimension]
    pace: TrialIntervals | None = None
    default: Params | None = None
    outside: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of planned trials. With the grid sampler, it is at most the number of combinations of values."""
        if self.config.sampler != "grid":
            return self.config.trials
        return min(self.config.trials, math.prod(len(dimension.grid or ()) for dimension in self.space))


@dataclass(frozen=True)
class TrialIntervals:
    """Intervals, in policy steps, that determine when the trials of a sweep are evaluated.

    If a key that the sweep varies affects an interval, the attribute is the largest interval of all trials.

    Attributes:
        every: interval between two evaluations (`evaluation.every`).
        longest: length of an iteration (collect and update). A run is evaluated at most once per iteration.
        budget: length of one run (`algo.total_steps`).
        done: policy steps of the run that the trials extend, which `budget` includes; 0 if they extend none.
    """

    every: int
    longest: int
    budget: int
    done: int = 0

    @staticmethod
    def of(tried: Sequence[tuple[Params, RunConfig]]) -> TrialIntervals:
        """Compute the evaluation intervals from the configs that are checked before the first trial.

        `tried` contains pairs (values of the varied keys, config that `prepare` returned). Each config differs from the
        first one in one key. The longest iteration is estimated: for each key, the largest factor by which it lengthens
        an iteration is computed, and the iteration of the first config is multiplied by the factors of all keys.
        """
        first, lengths = tried[0][0], [_iteration(config) for _, config in tried]
        longest: dict[str, float] = {}  # key -> factor by which it can lengthen an iteration
        for (point, _), length in zip(tried, lengths, strict=True):
            varied = next((key for key in point if point[key] != first.get(key)), "")
            longest[varied] = max(longest.get(varied, 1.0), length / lengths[0])
        return TrialIntervals(
            max(config.evaluation_every for _, config in tried),
            iteration := round(lengths[0] * math.prod(longest.values())),
            max(iteration, *(config.algo.step_limit for _, config in tried)),
            policy_steps(Path(source)) if (source := tried[0][1].checkpoint.extend_from) else 0,
        )

    @property
    def unit(self) -> int:
        """Smallest number of policy steps within which every trial is evaluated at least once."""
        return max(self.every, self.longest)

    @property
    def notice(self) -> str | None:
        """Message that some trials are evaluated less often than others; None if all are evaluated equally often."""
        if self.longest <= self.every:
            return None
        return (
            f"evaluation.every={self.every}: some trials have iterations of up to {self.longest} policy steps, so they "
            "are evaluated less often than others; the pruner compares trials at equal policy steps. To "
            f"evaluate all trials equally often, set evaluation.every={self.longest}"
        )

    def recent(self, evaluations: Sequence[tuple[int, float]], count: int) -> list[float]:
        """Return the scores of a run's evaluations in its last `count` intervals of `every` policy steps.

        `evaluations` contains pairs (policy steps, score), in order. The last interval contains the last evaluation.
        """
        if not evaluations:
            return []
        last = evaluations[-1][0] // self.every
        return [score for steps, score in evaluations if steps // self.every > last - count]

    def read_scores(self, trainings: Sequence[Sequence[tuple[int, float]]]) -> Iterator[tuple[int, float]]:
        """Yield the pairs (policy steps, score) of a trial's runs as if they were trained one after another.

        The policy steps of run number i start at i * budget.
        """
        for number, evaluations in enumerate(trainings):
            for steps, score in evaluations:
                yield number * self.budget + steps, score

    def score_at(self, scores: Mapping[int, float], steps: int) -> float | None:
        """Return the score of a trial after a number of policy steps; None before the first evaluation of a run.

        `scores` and `steps` count policy steps as `read_scores` does. Between two evaluations of one run, the score is
        interpolated linearly. After the last evaluation of a run, its last score is used.
        """
        begin = (steps - 1) // self.budget * self.budget
        known = [at for at in sorted(scores) if begin < at <= begin + self.budget]
        if not known or steps < known[0]:
            return None
        return float(np.interp(steps, known, [scores[at] for at in known]))


def _iteration(config: RunConfig) -> int:
    """Return the number of policy steps that one iteration of a run collects."""
    return config.algo.collect_length * config.width


def plan(overrides: Sequence[str]) -> SweepPlan:
    """Return the plan of the sweep that the arguments of `shepherd sweep` define.

    The arguments are `sweep=PRESET`, settings `sweep.KEY=VALUE`, overrides of all runs such as `env.id=CartPole-v1`,
    and keys to vary such as `algo.gamma=interval(0.9,1)`.
    """
    preset = [override.partition("=")[2] for override in overrides if override.startswith("sweep=")]
    if len(preset) > 1:
        raise UserError(f"sweep is given twice, as sweep={preset[0]} and sweep={preset[1]}; keep one")
    own = [override.removeprefix("sweep.") for override in overrides if override.startswith("sweep.")]
    typed = [override for override in overrides if not override.startswith(("sweep=", "sweep."))]
    values = (read_preset(preset[0]) if preset else {}) | _settings(own)
    config: SweepConfig = build(SweepConfig, values, "sweep.")
    base, dimensions = _runs(config, typed)
    stem = preset[0] if preset else next((line[4:] for line in base if line.startswith("exp=")), "sweep")
    name = config.name or f"{stem.replace('/', '_')}_{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    if not NAME.fullmatch(name):
        raise UserError(
            f"sweep.name={name}: must start with a letter or digit and may contain only letters, digits, dots, dashes "
            "and underscores"
        )
    return SweepPlan(dataclasses.replace(config, name=name), base, dimensions)


def change(config: SweepConfig, overrides: Sequence[str]) -> SweepConfig:
    """Return a copy of an existing sweep's settings in which overrides such as `sweep.trials=40` are applied.

    Raises UserError for settings that cannot be changed after the sweep has started.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if key.removeprefix("sweep.") not in LATER or not key.startswith("sweep."):
            may = ", ".join(f"sweep.{name}" for name in LATER)
            raise UserError(
                f"{override}: cannot be changed when a sweep is resumed; only {may} can. Start a new sweep under "
                "another sweep.name"
            )
    values = plain(config) | _settings([override.removeprefix("sweep.") for override in overrides])
    return build(SweepConfig, values, "sweep.")


def presets() -> list[str]:
    """Return the names that `sweep=` accepts: the sweep presets of this project and of the config search path."""
    return list(groups().get("sweep", ()))


def read_preset(name: str) -> dict[str, Any]:
    """Return the content of the sweep preset `sweep/<name>.yaml`, from the first config folder that contains it."""
    file = next((f for folder in config_folders() if (f := folder / "sweep" / f"{name}.yaml").is_file()), None)
    if file is None:
        hint = nearest(name, presets()) or f"; available presets: {', '.join(presets())}"
        raise UserError(f"sweep={name}: no such preset{hint}")
    return _yaml(file.read_text(), str(file))


def _settings(own: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as "trials=20" into a mapping from key to value."""
    settings: dict[str, Any] = {}
    for override in own:
        key, equals, text = override.partition("=")
        if not equals or not text:
            raise UserError(f"sweep.{override}: the value is missing; write sweep.{key}=VALUE")
        if key in settings:
            raise UserError(f"sweep.{key} is given twice; remove one of the two arguments")
        settings[key] = text if key in ("name", "storage") and text != "null" else _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text.replace("_", "") if re.fullmatch(r"[\d_]+", text) else text)
    except yaml.YAMLError:
        return text


def _yaml(text: str, place: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{place}: not valid YAML ({one_line(error)})") from None
    if not isinstance(values, Mapping):
        raise UserError(f"{place}: must be a mapping with keys of SweepConfig, such as overrides, trials and space")
    return dict(values)


def merge(base: Sequence[str], more: Sequence[str]) -> list[str]:
    """Concatenate two lists of overrides; if both set a key, the override in `base` is removed."""
    keys = {_key(override) for override in more}
    return [*(override for override in base if _key(override) not in keys), *more]


def _runs(config: SweepConfig, typed: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """Return the overrides that all runs of a sweep share, and the varied keys with their values.

    An argument of the command line replaces the preset's setting of the same key.
    """
    budget = [f"algo.total_steps={config.budget}"] if config.budget else []
    lines = without_plugins(merge(merge(config.overrides, budget), typed))
    taken_apart = parse(lines, groups())
    fixed = {_key(line) for line in typed}  # without the preset's overrides, which define the default configuration
    dimensions = space.of_mapping({key: written for key, written in config.space.items() if key not in fixed})
    dimensions += space.of_overrides(taken_apart.sweeps)
    if not dimensions:
        raise UserError(
            "no key is varied: choose a preset, e.g. sweep=ppo, or vary a key, e.g. "
            "algo.optimizer.lr=tag(log,interval(1e-4,1e-2))"
        )
    for key in (*map(_key, lines), *(dimension.key for dimension in dimensions)):
        if key in OURS:
            raise UserError(f"{key}: {OURS[key]}")
    varied = {sweep.key_or_group for sweep in taken_apart.sweeps}
    return [line for line in lines if _key(line) not in varied], dimensions


def _key(override: str) -> str:
    return override.partition("=")[0].strip().lstrip("+~")
