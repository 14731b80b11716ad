"""Stop conditions in a config: their names, keys and allowed values, and the translation of the older `early_stop.*`.

`rlcore.train.stopping` implements the conditions, and `rlcore.train.stop_conditions` calls them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.config.build import build
from rlcore.config.info_keys import EVALUATION, GAME
from rlcore.config.info_keys import KEY as INFO_KEYS
from rlcore.config.plugin_class import TARGET, read_class
from rlcore.config.schema import Needs, arg
from rlcore.config.values import nearest, plain, spell
from rlcore.errors import Mistakes, UserError

KEY = "stop"
OLD_KEY = "early_stop"
ALL = "all"
UNKNOWN = ""  # in place of the metrics that a user's condition reads
EVALUATION_RETURN = "Evaluation/greedy_mean"  # mean return of a greedy evaluation during training
PROGRESS = ("policy_steps", "env_steps", "updates")  # counters that conditions can read like metrics
# Metrics of every algorithm. Game/env_restarts is reported only if an environment was restarted.
COMMON = (EVALUATION_RETURN, "Rewards/rew_avg", "Game/ep_len_avg", "Game/env_restarts", *PROGRESS)


@dataclass(frozen=True)
class BoundConfig:
    """Keys of the conditions `upper_bound` and `lower_bound`."""

    metric: str = arg(help="name of the metric")
    value: float = arg(help="training ends when the metric reaches this value")


@dataclass(frozen=True)
class PlateauConfig:
    """Keys of the condition `plateau`."""

    metric: str = arg(help="name of the metric")
    patience: int = arg(5, "number of small changes in a row that ends training", low=1)
    rtol: float = arg(1e-3, "largest relative change of the metric that counts as small", low=0)


@dataclass(frozen=True)
class TrendConfig:
    """Keys of the conditions `stops_increasing` and `stops_decreasing`."""

    metric: str = arg(help="name of the metric")
    patience: int = arg(5, "number of values in a row without a new best value that ends training", low=1)
    min_delta: float = arg(0.0, "smallest difference from the best value that counts as an improvement", low=0)


FORMS: dict[str, type] = {
    "upper_bound": BoundConfig,
    "lower_bound": BoundConfig,
    "plateau": PlateauConfig,
    "stops_increasing": TrendConfig,
    "stops_decreasing": TrendConfig,
}
NAMES = (*FORMS, ALL)


@dataclass(frozen=True)
class EarlyStopConfig:
    """Older keys `early_stop.*`, which `translate_early_stop` converts to stop conditions."""

    target_return: float | None = arg(
        None, "stop training when the mean return of a greedy evaluation reaches this value; null = off"
    )
    patience: int | None = arg(None, "stop training after this many evaluations without improvement; null = off", low=1)
    min_delta: float = arg(
        0.0,
        "smallest increase of the mean return that counts as an improvement",
        low=0,
        needs=Needs("patience", bool, " of 1 or more"),
    )

    def conditions(self) -> Iterator[dict[str, Any]]:
        """Yield the equivalent stop conditions."""
        if self.target_return is not None:
            yield {"upper_bound": plain(BoundConfig(EVALUATION_RETURN, self.target_return))}
        if self.patience is not None:
            yield {"stops_increasing": plain(TrendConfig(EVALUATION_RETURN, self.patience, self.min_delta))}


def translate_early_stop(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a config in which the keys `early_stop.*` are replaced by conditions in `stop`.

    An older key replaces a condition of the same name on the mean return of evaluations: a run that was created with
    `early_stop.patience=3` can be resumed with `early_stop.patience=6`. Raises UserError if an older key is invalid.
    """
    if OLD_KEY not in values:
        return values
    others = {key: value for key, value in values.items() if key != OLD_KEY}
    translated = [*build(EarlyStopConfig, values[OLD_KEY], f"{OLD_KEY}.").conditions()]
    stated = others.get(KEY, ())
    if not translated or isinstance(stated, str) or not isinstance(stated, Sequence):
        return others  # an invalid value of `stop` is reported when the config is built
    names = {name for condition in translated for name in condition}
    return others | {KEY: [*(c for c in stated if not _reads_evaluations(c, names)), *translated]}


def _reads_evaluations(condition: Any, names: Collection[str]) -> bool:
    """Return True if the condition has one of these names and reads the mean return of evaluations."""
    name, keys = next(iter(condition.items()), ("", None)) if isinstance(condition, Mapping) else ("", None)
    return name in names and isinstance(keys, Mapping) and keys.get("metric") == EVALUATION_RETURN


def read_conditions(stated: Sequence[Any], key: str = KEY) -> tuple[dict[str, Any], ...]:
    """Check the conditions of a config, and return them with the defaults of missing keys.

    Args:
        stated: value of the config key, or of `all` in it.
        key: dotted key of the list, for messages.

    Returns:
        Conditions, each a mapping with one name (see `NAMES`), or with `_target_` and the arguments of that class.

    Raises:
        UserError: a condition is not a mapping, has an unknown name or invalid keys, or names a class that is not part
            of a plugin or does not accept its arguments. The message lists all errors.
    """
    mistakes, conditions = Mistakes(), list[dict[str, Any]]()
    for index, condition in enumerate(stated):
        with mistakes.catch():
            conditions.append(_read_condition(condition, f"{key}[{index}]"))
    mistakes.raise_collected()
    return tuple(conditions)


def _read_condition(condition: Any, key: str) -> dict[str, Any]:
    if not isinstance(condition, Mapping):
        raise UserError(
            f"{key}={spell(condition)}: must be a mapping with one condition, as "
            "{upper_bound: {metric: Rewards/rew_avg, value: 475}}"
        )
    if TARGET in condition:
        return read_class(condition, key, _check_class)
    if len(condition) != 1:
        given = ", ".join(map(str, condition)) or "none"
        raise UserError(f"{key}: must have the name of one condition, but has {given}; names: {', '.join(NAMES)}")
    name, keys = next(iter(condition.items()))
    if name == ALL:
        if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
            raise UserError(f"{key}.{ALL}={spell(keys)}: must be a list of conditions, of which all must hold")
        return {ALL: list(read_conditions(keys, f"{key}.{ALL}"))}
    if name not in FORMS:
        known = nearest(str(name), NAMES) or f"; names: {', '.join(NAMES)}"
        raise UserError(f"{key}: unknown stop condition {spell(name)!r}{known}")
    return {name: plain(build(FORMS[name], keys, f"{key}.{name}."))}


def _check_class(found: type, place: str) -> None:
    if "__call__" not in dir(found):
        raise UserError(f"{place}: must be a class with a method __call__(metrics) that returns a bool")


def metrics_read(conditions: Sequence[Mapping[str, Any]], key: str = KEY) -> Iterator[tuple[str, str]]:
    """Yield each `metric` in conditions that `read_conditions` returned, as its dotted key and its value.

    For a user's class, the value is `UNKNOWN`.
    """
    for index, condition in enumerate(conditions):
        name, keys = next(iter(condition.items()))
        if name == ALL:
            yield from metrics_read(keys, f"{key}[{index}].{ALL}")
        elif name in FORMS:
            yield f"{key}[{index}].{name}.metric", keys["metric"]
        else:
            yield f"{key}[{index}].{TARGET}", UNKNOWN


def reads_evaluations(metric: str) -> bool:
    """Return True if a metric is reported by evaluations, False if it is reported by the iterations of training."""
    return metric.startswith("Evaluation/")


def refuse_unknown_metrics(read: Iterable[tuple[str, str]], known: Iterable[str], reporter: str) -> None:
    """Raise UserError if a condition reads a metric that is not reported.

    Args:
        read: place of each metric in the config and its name, for example the result of `metrics_read`.
        known: names of the metrics that are reported, without those of every algorithm.
        reporter: name of the algorithm, or another name for the training, for the message.

    Raises:
        UserError: A metric is unknown. The message has the most similar name, or all names.
    """
    names, mistakes = (*COMMON, *sorted({*known}.difference(COMMON))), Mistakes()
    for key, metric in read:
        if metric not in (*names, UNKNOWN):
            hint = nearest(metric, names) or f"; metrics: {', '.join(names)}"
            if metric.startswith((GAME, EVALUATION)):
                hint += f" (a number of info is reported if {INFO_KEYS} contains its name)"
            mistakes.note(UserError(f"{key}={metric}: {reporter} does not report this metric{hint}"))
    mistakes.raise_collected()
