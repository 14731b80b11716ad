"""Config key `env.info_keys`: names of numbers in `info` that are logged as metrics of episodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcore.errors import Mistakes, UserError

KEY = "env.info_keys"
MODES = ("mean", "last")  # over the steps of an episode; the first is the default
# Prefixes of metrics: of training episodes, of evaluations during training, and of the random policy.
GAME, EVALUATION, RANDOM = "Game/", "Evaluation/greedy_", "Evaluation/random_"
# Names whose metrics would replace other metrics with the same prefixes.
RESERVED = ("ep_len_avg", "env_restarts", "episodes", "resets", "steps", "mean", "low", "high", "cumulative_reward")
SUFFIXES = ("_low", "_high", "_stochastic")  # of the names that evaluations and data frames derive
# Characters that MLflow and TensorBoard accept in the name of a metric.
NAME = re.compile(r"\w+(?:[.\-/ ]\w+)*", re.ASCII)


class InfoKey(NamedTuple):
    """Number in `info` that is logged.

    Attributes:
        name: key in `info`. If `info` lacks it, the parts between dots are keys of nested mappings.
        last: True to log its last value in an episode, False to log its mean over the steps that contain it.
    """

    name: str
    last: bool

    def find(self, info: Mapping[str, Any]) -> Any:
        """Return the value in `info`, or None if it is missing."""
        if self.name in info or "." not in self.name:
            return info.get(self.name)
        value: Any = info
        for part in self.name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def read_info_keys(stated: Sequence[str], key: str = KEY) -> tuple[InfoKey, ...]:
    """Return the numbers that a value of `env.info_keys` selects.

    Args:
        stated: the value: a list of `NAME`, `NAME:mean` or `NAME:last`.
        key: dotted key, for messages.

    Returns:
        The numbers, in the order of the list.

    Raises:
        UserError: A name is repeated, reserved or contains other characters than a metric can have, or the text after
            the colon is unknown. The message lists all errors.
    """
    found: list[InfoKey] = []
    mistakes = Mistakes()
    for entry in stated:
        name, colon, mode = entry.partition(":")
        if colon and mode not in MODES:
            mistakes.note(
                UserError(f"{key}: {entry!r} must be {' or '.join(['NAME', *(f'NAME:{one}' for one in MODES)])}")
            )
        elif not NAME.fullmatch(name):
            mistakes.note(
                UserError(
                    f"{key}: {entry!r} cannot be the name of a metric; use a key of info that consists of letters, "
                    "digits, spaces and the characters _ . - /"
                )
            )
        elif name in RESERVED or name.endswith(SUFFIXES):
            mistakes.note(
                UserError(f"{key}: {name!r} is the name of another metric; let the environment use another key of info")
            )
        elif any(name == other.name for other in found):
            mistakes.note(UserError(f"{key}: {name!r} is given twice; remove one of the entries"))
        else:
            found.append(InfoKey(name, mode == "last"))
    mistakes.raise_collected()
    return tuple(found)


def evaluation_metric(name: str, final: bool = False, mode: str = "greedy") -> str:
    """Return the name of the metric of an evaluation, for a number that is selected by `env.info_keys`.

    Args:
        name: name of the number.
        final: True for the final evaluation, False for evaluations during training.
        mode: "greedy" or "stochastic" actions.

    Returns:
        The name, such as `Evaluation/greedy_is_success`, `Test/is_success` or `Test/is_success_stochastic`.
    """
    if not final:
        return f"{EVALUATION}{name}"
    return f"Test/{name}" + ("" if mode == "greedy" else f"_{mode}")


def metric_names(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the metrics of training episodes and of greedy evaluations for these `env.info_keys`."""
    names = [key.name for key in read_info_keys(keys)]
    return (*(GAME + name for name in names), *(EVALUATION + name for name in names))
