"""Plan of a sweep: from a preset of conf/sweep and what is typed behind `shepherd sweep` to a checked plan."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from flows.config.compose import without_plugins
from flows.config.mistakes import one_line
from flows.config.overrides import parse
from flows.config.search_path import config_folders
from flows.config.yaml_files import groups
from flows.sweeps import space
from flows.sweeps.pace import Pace
from flows.sweeps.space import Dimension, Params
from rlcore.config.build import build
from rlcore.config.schema import Needs, arg
from rlcore.config.values import nearest, plain
from rlcore.errors import UserError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
# Keys of a run that its sweep decides.
OURS = {
    "seed": "the seeds of a sweep's runs follow from sweep.seed",
    "run_dir": "the folders of a sweep's runs follow from sweep.name",
    "run_name": "the folders of a sweep's runs follow from sweep.name",
    "root_dir": "the folders of a sweep's runs follow from sweep.name; log_root chooses the folder above",
    "group": "the runs of a sweep are its group: sweep.name",
    "checkpoint.resume_from": "a trial learns from the beginning",
}


@dataclass(frozen=True)
class SweepConfig:
    """The keys `sweep.*`."""

    name: str = arg("", "of the sweep, its folder and its study; default <preset>_<time>")
    trials: int = arg(20, "how many", low=1)
    workers: int = arg(2, "trials at once", low=1)
    seeds: int = arg(1, "training seeds of each trial, the same for all; a trial's value is the IQM over them", low=1)
    sampler: str = arg("tpe", "how values are chosen", choices=("tpe", "gp", "random", "grid"))
    startup: int = arg(10, "trials drawn at random before tpe and gp begin, and before anything is pruned", low=0)
    pruner: str = arg("median", "which trials are ended early", choices=("median", "halving", "hyperband", "none"))
    warmup: int = arg(
        2,
        "evaluations of a trial before median may end it",
        low=0,
        needs=Needs("pruner", lambda pruner: pruner == "median", "=median"),
    )
    objective: str = arg(
        "last",
        "a run's value: mean return of its last evaluations, of all of them (learning speed), or of the final one",
        choices=("last", "all", "final"),
    )
    last: int = arg(
        3,
        "how many times evaluation.every policy steps objective=last takes the mean over",
        low=1,
        needs=Needs("objective", lambda objective: objective == "last", "=last"),
    )
    budget: int | None = arg(None, "policy steps of each run; null = the preset's algo.total_steps", low=1)
    mode: str = arg(
        "batch",
        "batch: the same trials for the same seed; async: every trial chosen by all that is known then",
        choices=("batch", "async"),
    )
    batch: int = arg(
        4,
        "trials of a batch: each knows what the batches before came to; sweep.workers at least",
        low=1,
        needs=Needs("mode", lambda mode: mode == "batch", "=batch"),
    )
    seed: int = arg(42, "of the sampler, the runs' seeds and the confirmation", low=0)
    storage: str | None = arg(
        None, "Optuna's database, as postgresql+psycopg2://…; null = SHEPHERD_SWEEP_STORAGE, else a file"
    )
    confirm_seeds: int = arg(10, "fresh seeds on which the winner meets the default configuration; 0 = off", low=0)
    overrides: tuple[str, ...] = arg((), "of every run, as one would type them behind `shepherd train`")
    space: dict[str, Any] = arg({}, "key -> what it is varied between (docs/sweeps.md)")

    def check(self, prefix: str) -> None:
        """Refuse workers that would never have anything to do."""
        if self.mode == "batch" and self.workers > self.batch:
            raise UserError(
                f"{prefix}workers={self.workers}: a batch has {self.batch} trials, so some would always wait; set "
                f"{prefix}batch={self.workers}, or {prefix}mode=async"
            )


# What may be set anew for a sweep that is there: none of it changes which trials there are.
LATER = ("trials", "workers", "confirm_seeds")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that is checked as far as its keys go.

    Attributes:
        config: the keys `sweep.*`, `name` given.
        base: overrides of every run, `exp=` among them.
        space: the dimensions, those of the preset first.
        pace: how often trials are judged; None until `check_plan` has found it.
        default: the values of the default configuration, which trial 0 has; None if the space does not contain them.
        outside: the values of the default configuration that the space does not contain, as one would type them.
    """

    config: SweepConfig
    base: list[str]
    space: list[Dimension]
    pace: Pace | None = None
    default: Params | None = None
    outside: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of trials that there are to be; of a grid no more than it has points."""
        if self.config.sampler != "grid":
            return self.config.trials
        return min(self.config.trials, math.prod(len(dimension.grid or ()) for dimension in self.space))


def plan(overrides: Sequence[str]) -> SweepPlan:
    """The sweep that was typed: `sweep=PRESET`, `sweep.KEY=VALUE`, overrides of the runs, and what is varied."""
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
        raise UserError(f"sweep.name={name}: letters, digits, dots, dashes and underscores, no others")
    return SweepPlan(dataclasses.replace(config, name=name), base, dimensions)


def change(config: SweepConfig, overrides: Sequence[str]) -> SweepConfig:
    """The settings of a sweep that is there, some set anew."""
    for override in overrides:
        key = override.partition("=")[0]
        if key.removeprefix("sweep.") not in LATER or not key.startswith("sweep."):
            may = ", ".join(f"sweep.{name}" for name in LATER)
            raise UserError(f"{override}: of a sweep that has begun only {may} may change; a new one needs a new name")
    values = plain(config) | _settings([override.removeprefix("sweep.") for override in overrides])
    return build(SweepConfig, values, "sweep.")


def presets() -> list[str]:
    """Return the names that one may write behind `sweep=`; the search path's folders are included."""
    return list(groups().get("sweep", ()))


def read_preset(name: str) -> dict[str, Any]:
    """The content of a preset; the first of the config folders that has it."""
    file = next((f for folder in config_folders() if (f := folder / "sweep" / f"{name}.yaml").is_file()), None)
    if file is None:
        hint = nearest(name, presets()) or f"; presets: {', '.join(presets())}"
        raise UserError(f"sweep={name}: no such preset{hint}")
    return _yaml(file.read_text(), str(file))


def _settings(own: Sequence[str]) -> dict[str, Any]:
    """`trials=20` and the like, as values."""
    found: dict[str, Any] = {}
    for override in own:
        key, equals, text = override.partition("=")
        if not equals or not text:
            raise UserError(f"sweep.{override}: no value; write sweep.{key}=VALUE")
        if key in found:
            raise UserError(f"sweep.{key} is given twice; keep one")
        found[key] = text if key in ("name", "storage") and text != "null" else _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text.replace("_", "") if re.fullmatch(r"[\d_]+", text) else text)
    except yaml.YAMLError:
        return text


def _yaml(text: str, place: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{place}: this is not YAML ({one_line(error)})") from None
    if not isinstance(values, Mapping):
        raise UserError(f"{place}: must be a mapping of the keys of SweepConfig")
    return dict(values)


def merge(base: Sequence[str], more: Sequence[str]) -> list[str]:
    """Overrides with others that replace what they say for the same key."""
    keys = {_key(override) for override in more}
    return [*(override for override in base if _key(override) not in keys), *more]


def _runs(config: SweepConfig, typed: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """The overrides of every run and the dimensions; what is typed replaces what the preset has for a key."""
    budget = [f"algo.total_steps={config.budget}"] if config.budget else []
    lines = without_plugins(merge(merge(config.overrides, budget), typed))
    taken_apart = parse(lines, groups())
    fixed = {_key(line) for line in typed}  # what the preset itself gives for a key is the default configuration's
    dimensions = space.of_mapping({key: written for key, written in config.space.items() if key not in fixed})
    dimensions += space.of_overrides(taken_apart.sweeps)
    if not dimensions:
        raise UserError(
            "nothing is varied: choose a preset, as sweep=ppo, or write algo.optimizer.lr=tag(log,interval(1e-4,1e-2))"
        )
    for key in (*map(_key, lines), *(dimension.key for dimension in dimensions)):
        if key in OURS:
            raise UserError(f"{key}: {OURS[key]}")
    varied = {sweep.key_or_group for sweep in taken_apart.sweeps}
    return [line for line in lines if _key(line) not in varied], dimensions


def _key(override: str) -> str:
    return override.partition("=")[0].strip().lstrip("+~")
