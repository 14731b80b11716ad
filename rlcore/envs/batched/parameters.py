"""Parameters of a batched environment (`env.config`): constants, distributions and schedules. No torch is imported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from rlcore.config.build import convert
from rlcore.config.schema import types_of
from rlcore.config.values import nearest, spell
from rlcore.errors import UserError
from rlcore.functional.schedules import check_points, piecewise

if TYPE_CHECKING:  # environments in worker processes do not need torch
    from rlcore.envs.batched.random import BatchedRandom

FORMS = "{uniform: [low, high]} or {normal: [mean, standard deviation]}"


class ParameterRule(Protocol):
    """Rule for the value that a parameter has in an episode."""

    def draw(self, random: BatchedRandom) -> Any:
        """Draw the values [B] of the episodes that start now."""
        ...


@dataclass(frozen=True)
class UniformParameter:
    """Uniform distribution in [low, high)."""

    low: float
    high: float

    def draw(self, random: BatchedRandom) -> Any:
        """Draw one value for each copy, [B]."""
        return random.uniform(self.low, self.high)


@dataclass(frozen=True)
class NormalParameter:
    """Normal distribution."""

    mean: float
    std: float

    def draw(self, random: BatchedRandom) -> Any:
        """Draw one value for each copy, [B]."""
        return self.mean + self.std * random.normal()


@dataclass(frozen=True)
class ParameterSchedule:
    """Value that changes during training, linearly between (policy steps, value) pairs."""

    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Parameters:
    """Values of `env.config`.

    Attributes:
        constants: instance of `BatchedEnv.Config`; the fields in `rules` have their defaults.
        rules: name of a field -> rule for its values in each episode.
    """

    constants: Any
    rules: dict[str, ParameterRule | ParameterSchedule]

    def at(self, policy_steps: int, device: Any) -> dict[str, Any]:
        """Return the values of the schedules after a number of policy steps, name -> tensor [] on a device."""
        schedules = {name: rule.points for name, rule in self.rules.items() if isinstance(rule, ParameterSchedule)}
        if not schedules:
            return {}
        from torch import tensor  # environments in worker processes do not need torch

        return {name: tensor(piecewise(points, policy_steps), device=device) for name, points in schedules.items()}

    def draw(self, random: BatchedRandom, scheduled: Mapping[str, Any]) -> Any:
        """Return an instance of `BatchedEnv.Config` for the episodes that start now.

        Args:
            random: random stream of these episodes.
            scheduled: current values of the schedules, the result of `at`.

        Returns:
            The constants; each field in `rules` is a tensor [B].
        """
        if not self.rules:
            return self.constants
        drawn = {
            name: random.fill(scheduled[name]) if isinstance(rule, ParameterSchedule) else rule.draw(random)
            for name, rule in self.rules.items()
        }
        return dataclasses.replace(self.constants, **drawn)

    def changed(self, values: Mapping[str, Any], env_id: str, only_numbers: bool = False) -> Parameters:
        """Return these parameters with other values for some fields, as in `collect(env_config=...)`.

        Args:
            values: field -> number or distribution.
            env_id: id of the environment, for messages.
            only_numbers: True if distributions are invalid (`parse`).

        Returns:
            The parameters.

        Raises:
            UserError: A field is unknown, or its value is invalid.
        """
        new = parse(type(self.constants), values, "env_config", env_id, only_numbers)
        given = {name: getattr(new.constants, name) for name in values if name not in new.rules}
        kept = {name: rule for name, rule in self.rules.items() if name not in values}
        return Parameters(dataclasses.replace(self.constants, **given), kept | new.rules)


def parse(cls: type, values: Mapping[str, Any], key: str, env_id: str, only_numbers: bool = False) -> Parameters:
    """Check the values of `env.config` and convert them.

    Args:
        cls: dataclass `Config` of the batched environment.
        values: field -> number, distribution or schedule, as in a config file.
        key: dotted key of `values`, for messages. Schedules are allowed only in `env.config`.
        env_id: id of the environment, for messages.
        only_numbers: True if the environment resets ended copies itself, so that distributions and schedules, which
            give each episode its own value, are invalid.

    Returns:
        The parameters.

    Raises:
        UserError: A field is unknown, or its value is invalid.
    """
    hints, constants, rules = types_of(cls), dict[str, Any](), dict[str, ParameterRule | ParameterSchedule]()
    for name, value in values.items():
        place = f"{key}.{name}={spell(value)}"
        if name not in hints:
            fields = f"its fields are {', '.join(hints)}" if hints else "it has no fields"
            raise UserError(f"{place}: {env_id} has no field {name!r}; {fields}{nearest(name, hints)}")
        if not isinstance(value, (Mapping, list, tuple)):
            constants[name] = convert(value, hints[name], f"{key}.{name}")
            if isinstance(constants[name], float) and not math.isfinite(constants[name]):
                raise UserError(f"{place}: must be a finite number")
        elif only_numbers:
            raise UserError(f"{place}: must be a number, because {env_id} starts its episodes itself")
        elif hints[name] is not float:
            raise UserError(f"{place}: only fields that are numbers can have a distribution or a schedule")
        elif isinstance(value, Mapping):
            rules[name] = _distribution(cast("Mapping[str, Any]", value), place)
        else:
            rules[name] = _schedule(cast("Sequence[Any]", value), place, key)
    return Parameters(cls(**constants), {name: rules[name] for name in hints if name in rules})


def _distribution(value: Mapping[str, Any], place: str) -> ParameterRule:
    (kind, numbers), *more = [*value.items()] or [("", ())]
    if more or kind not in ("uniform", "normal") or not _are_numbers(numbers, 2):
        raise UserError(f"{place}: must be a number, {FORMS}")
    first, second = map(float, numbers)
    if kind == "uniform" and first >= second:
        raise UserError(f"{place}: low must be less than high")
    if kind == "normal" and second < 0:
        raise UserError(f"{place}: the standard deviation must not be negative")
    return UniformParameter(first, second) if kind == "uniform" else NormalParameter(first, second)


def _schedule(value: Sequence[Any], place: str, key: str) -> ParameterSchedule:
    if key != "env.config":
        raise UserError(f"{place}: a schedule is allowed only in env.config; set a number, {FORMS}")
    if not all(_are_numbers(pair, 2) for pair in value):
        raise UserError(f"{place}: must be a number, {FORMS}, or a list of [policy steps, value] pairs")
    if (problem := check_points(value)) is not None:
        raise UserError(f"{place}: {problem}")
    return ParameterSchedule(tuple((float(steps), float(number)) for steps, number in value))


def _are_numbers(value: Any, count: int) -> bool:
    """Return True if a value is a list of `count` finite numbers."""
    return (
        isinstance(value, (list, tuple))
        and len(cast("Sequence[Any]", value)) == count
        and all(
            isinstance(part, (int, float)) and not isinstance(part, bool) and math.isfinite(part)
            for part in cast("Sequence[Any]", value)
        )
    )


def for_evaluation(training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for evaluations: `env.config`, with the fields that `evaluation.env_config` sets.

    A schedule in `env.config` counts with its last value.
    """
    last = {name: value[-1][-1] if isinstance(value, (list, tuple)) else value for name, value in training.items()}
    return last | dict(evaluation)
