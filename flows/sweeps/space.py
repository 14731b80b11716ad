"""Search space of a sweep: the config keys that the sweep varies, with their values.

Each varied key is a dimension of the space; its values must have the type that the config declares for the key. On the
command line, a dimension is written in Hydra's grammar (left). In a preset, it may also be a mapping (right):

    algo.optimizer.lr=tag(log,interval(1e-5,1e-2))      {type: float, low: 1e-5, high: 1e-2, log: true}
    algo.update_epochs=interval(1,8)                    {type: int, low: 1, high: 8}
    algo.update_epochs=range(2,10,2)                    {type: int, low: 2, high: 8, step: 2}
    algo.rollout_steps=choice(64,128,256)               {type: categorical, choices: [64, 128, 256]}

A mapping may contain `when: {other.key: value}`. The key is then varied only if another varied key has this value, or
one of a list of values.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flows.config.overrides import override_text, parse
from flows.config.yaml_files import groups
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.config.values import nearest, spell
from rlcore.errors import UserError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

Params = dict[str, Any]  # key -> value, in the order of the space
TYPES = ("float", "int", "categorical")
FIELDS = ("type", "low", "high", "log", "step", "choices", "when")


@dataclass(frozen=True)
class Dimension:
    """Dimension of a search space: a config key that a sweep varies, and its values.

    Attributes:
        key: dotted config key, or name of a group of config files.
        type: "float", "int" or "categorical".
        written: the user's text that defines the values, for messages.
        low: smallest value.
        high: largest value (inclusive).
        log: True if the logarithm of the value is drawn uniformly.
        step: distance between two values. If it is None, all numbers (or integers) from `low` to `high` are allowed.
        choices: values of a categorical key.
        when: condition: key of an earlier dimension -> values that it must have for this key to be varied.
    """

    key: str
    type: str
    written: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values that are checked before the first trial of a sweep: both ends of the range, or every choice."""
        return self.choices if self.type == "categorical" else (self._cast(self.low), self._cast(self.high))

    @property
    def grid(self) -> list[Any] | None:
        """List of all values of the key, as Optuna stores them; None if there are infinitely many."""
        if self.type == "categorical":
            return [to_stored(choice) for choice in self.choices]
        if self.type == "float" and self.step is None:
            return None
        step = self.step or 1
        count = int((self.high - self.low) / step + 1e-9) + 1
        return [self._cast(self.low + i * step) for i in range(count)]

    def present(self, params: Params) -> bool:
        """Return True if a trial with these values of the earlier keys has a value for this key (`when` condition)."""
        return all(params.get(key) in wanted for key, wanted in self.when.items())

    def suggest(self, trial: Trial) -> Any:
        """Sample a value of the key for an Optuna trial and return it in the form that the config accepts."""
        if self.type == "categorical":
            return self.to_config(trial.suggest_categorical(self.key, [to_stored(choice) for choice in self.choices]))
        if self.type == "int":
            low, high = round(self.low), round(self.high)
            return trial.suggest_int(self.key, low, high, step=round(self.step or 1), log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def distribution(self) -> BaseDistribution:
        """Return the distribution that `suggest` samples from."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.type == "categorical":
            return CategoricalDistribution([to_stored(choice) for choice in self.choices])
        if self.type == "int":
            return IntDistribution(round(self.low), round(self.high), log=self.log, step=round(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def holds(self, value: Any) -> bool:
        """Return True if a value of the key is in the range or among the choices."""
        if self.type == "categorical":
            # 0.0 and 0 are the same value, but True and 1 are not, although True == 1.
            same = (choice for choice in self.choices if isinstance(choice, bool) is isinstance(value, bool))
            return any(value == choice for choice in same)
        return isinstance(value, int | float) and self.distribution()._contains(value)

    def to_config(self, value: Any) -> Any:
        """Convert a value from Optuna's database to the value in the config; inverse of `to_stored`."""
        return next((choice for choice in self.choices if to_stored(choice) == value), value)

    def _cast(self, value: float) -> Any:
        return round(value) if self.type == "int" else float(value)


def to_stored(value: Any) -> Any:
    """Convert a value in the config to one that Optuna can store: lists and mappings become JSON text."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def to_overrides(params: Params) -> list[str]:
    """Return a mapping from key to value as a list of overrides such as "algo.gamma=0.9"."""
    return [override_text(key, value) for key, value in params.items()]


def of_overrides(sweeps: Sequence[Override]) -> list[Dimension]:
    """Convert overrides such as `algo.gamma=interval(0.9,1)` to dimensions of a search space."""
    return [_of_override(sweep) for sweep in sweeps]


def of_mapping(space: Mapping[str, Any]) -> list[Dimension]:
    """Convert the key `space` of a sweep preset to dimensions of a search space.

    A value is a mapping such as {type: float, low: 0.9, high: 1}, or text such as "interval(0.9,1)".
    """
    found: list[Dimension] = []
    for key, written in space.items():
        if isinstance(written, Mapping):
            found.append(_of_mapping(str(key), written, found))
            continue
        sweeps = parse([f"{key}={written}"], groups()).sweeps
        if not sweeps:
            raise UserError(
                f"sweep.space.{key}={spell(written)}: a single value cannot be varied; write choice(…), range(…) or "
                "interval(…), or set the key in sweep.overrides"
            )
        found += of_overrides(sweeps)
    return found


def _of_override(sweep: Override) -> Dimension:
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    key, value, written = sweep.key_or_group, sweep.value(), (sweep.input_line or "").partition("=")[2]
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None
        whole = _takes(key, isinstance(value.start, int) and isinstance(value.end, int), written)
        kind, log = "int" if whole else "float", "log" in value.tags
        return _numbers(Dimension(key, kind, written, value.start, value.end, log))
    if isinstance(value, RangeSweep):
        numbers = list(value.range())
        if not numbers:
            raise UserError(f"{key}={written}: this range contains no value; check its start, stop and step")
        whole = all(float(number).is_integer() for number in numbers)
        kind = "int" if _takes(key, whole, written) else "float"
        step = abs(value.step or 1)
        return _numbers(Dimension(key, kind, written, numbers[0], numbers[-1], "log" in value.tags, step))
    if not isinstance(value, ChoiceSweep):
        raise UserError(f"{key}={written}: cannot be varied this way; write choice(…), range(…) or interval(…)")
    return _categorical(key, written, [_plain(choice) for choice in value.list])


def _of_mapping(key: str, given: Mapping[str, Any], before: Sequence[Dimension]) -> Dimension:
    place, written = f"sweep.space.{key}", spell(dict(given))
    if unknown := [name for name in given if name not in FIELDS]:
        raise UserError(f"unknown key {place}.{unknown[0]}{nearest(unknown[0], FIELDS)}; allowed: {', '.join(FIELDS)}")
    kind = given.get("type", "categorical" if "choices" in given else None)
    if kind not in TYPES:
        raise UserError(f"{place}.type={spell(kind)}: must be one of {', '.join(TYPES)}")
    needed = ("choices",) if kind == "categorical" else ("low", "high")
    if missing := [name for name in needed if name not in given]:
        raise UserError(f"{place}: {missing[0]} is missing; type {kind} needs {' and '.join(needed)}")
    when = _condition(place, given.get("when") or {}, before)
    if kind == "categorical":
        choices = given["choices"]
        if isinstance(choices, list) and not _kinds(key) & {str, Any}:
            choices = [_misread(choice) for choice in choices]
        return _categorical(key, written, choices, when)
    low, high = (_number(f"{place}.{name}", given[name]) for name in ("low", "high"))
    step = None if given.get("step") is None else _number(f"{place}.step", given["step"])
    return _numbers(Dimension(key, kind, written, low, high, bool(given.get("log")), step, when=when))


def _condition(place: str, when: Any, before: Sequence[Dimension]) -> dict[str, tuple[Any, ...]]:
    if not isinstance(when, Mapping):
        raise UserError(f"{place}.when={spell(when)}: must be a mapping of keys of the space to values")
    for key in when:
        if key not in (known := [dimension.key for dimension in before]):
            hint = nearest(key, known)
            raise UserError(f"{place}.when: refers to {key}, which is not among the keys listed before it{hint}")
    return {key: tuple(value) if isinstance(value, list) else (value,) for key, value in when.items()}


def _numbers(dimension: Dimension) -> Dimension:
    """Check a dimension of type "float" or "int"; return it with `low` and `high` in ascending order.

    Raises UserError if range, step and `log` contradict each other.
    """
    d = replace(dimension, low=min(dimension.low, dimension.high), high=max(dimension.low, dimension.high))
    setting = f"{d.key}={d.written}"
    if d.type == "int" and not all(float(number).is_integer() for number in (d.low, d.high, d.step or 1)):
        raise UserError(f"{setting}: the key is an integer, so both ends and the step must be integers")
    if d.log and d.low <= 0:
        raise UserError(f"{setting}: both ends must be greater than 0, because values are drawn on a log scale")
    if d.log and d.step not in (None, 1):
        raise UserError(f"{setting}: log and step cannot be combined; remove one of them")
    if d.step is not None and d.step <= 0:
        raise UserError(f"{setting}: step must be greater than 0")
    return replace(d, step=None) if d.log else d


def _categorical(key: str, written: str, choices: Any, when: Mapping[str, tuple[Any, ...]] | None = None) -> Dimension:
    if not isinstance(choices, list) or not choices:
        raise UserError(f"{key}={written}: choices must be a list with at least one value")
    if len({(type(choice), to_stored(choice)) for choice in choices}) < len(choices):
        raise UserError(f"{key}={written}: a choice is given twice; remove one of them")
    return Dimension(key, "categorical", written, choices=tuple(choices), when=when or {})


def _kinds(key: str) -> set[Any]:
    """Return the types that the config declares for a key; {Any} if it does not declare the key."""
    found = [*arguments(RunConfig), *(a for module in ALGORITHMS.values() for a in arguments(module.Config, "algo."))]
    annotation = next((argument.type for argument in found if argument.key == key), Any)
    return {annotation, *typing.get_args(annotation)}


def _misread(choice: Any) -> Any:
    """Convert text such as "1e-3" to a number, because YAML reads it as text; return other values unchanged."""
    try:
        return float(choice) if isinstance(choice, str) else choice
    except ValueError:
        return choice


def _takes(key: str, whole: bool, written: str) -> bool:
    """Return True if a key accepts only integers; `whole` if its type is not declared. Raise UserError for text."""
    kinds = _kinds(key)
    if not kinds & {int, float, Any}:
        raise UserError(f"{key}={written}: this key does not accept numbers; list its values with choice(…)")
    return whole if Any in kinds else float not in kinds


def _number(key: str, value: Any) -> float:
    try:  # YAML reads 1e-5 as text
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        raise UserError(f"{key}={spell(value)}: must be a number") from None


def _plain(choice: Any) -> Any:
    """Convert a value that Hydra has parsed to a Python value: quoted strings become str, also in lists and dicts."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(choice, QuotedString):
        return choice.text
    if isinstance(choice, list):
        return [_plain(item) for item in choice]
    return {key: _plain(item) for key, item in choice.items()} if isinstance(choice, dict) else choice
