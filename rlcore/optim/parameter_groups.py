"""One rule over parameters in groups, each of which may have a learning rate and a weight decay of its own."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.errors import UserError
from rlcore.optim import rules
from rlcore.optim.flat import FlatParameters
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.optim.rules import Slots


class Section(NamedTuple):
    """Numbers of a vector, the settings of their parameters, and α of these over α of all."""

    where: slice
    config: OptimizerConfig
    rate: float


def group_of(config: OptimizerConfig, name: str) -> int:
    """The group of a parameter, from 1: the first whose pattern is its name or a module's that it is in; 0 = none."""
    groups = enumerate(config.groups, 1)
    return next((i for i, p in groups if fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*")), 0)


class GroupedRule:
    """The step of all groups as one.

    Args:
        config: the rule, the settings of all and those of groups.
        parameters: in the order of `group_of`.

    Raises:
        UserError: a group has no parameter.
    """

    def __init__(self, config: OptimizerConfig, parameters: FlatParameters) -> None:
        starts: dict[int, int] = {}
        for name, (start, _) in parameters.places.items():
            starts.setdefault(group_of(config, name), start)
        for i, pattern in enumerate(config.groups, 1):
            if i not in starts:
                raise UserError(
                    f"optimizer.groups: no parameter is left for {pattern!r}; there are {', '.join(parameters.places)}"
                )
        patterns, ends = [*config.groups], [*[*starts.values()][1:], len(parameters.vector)]
        self.sections = [
            Section(slice(start, end), own, own.lr / config.lr)
            for (i, start), end in zip(starts.items(), ends, strict=True)
            for own in [config.of_group(patterns[i - 1]) if i else config]
        ]

    def update(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> tuple[Tensor, Slots]:
        """As `rlcore.optim.rules.update`, whose arguments these are."""
        made = [rules.update(*each) for each in self._each(vector, gradient, slots, count, lr)]
        if len(made) == 1:
            return made[0]
        after = {name: torch.cat([held[name] for _, held in made]) for name in slots}
        return torch.cat([part for part, _ in made]), after

    def update_in_place(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> None:
        """As `rlcore.optim.rules.update_in_place`."""
        for each in self._each(vector, gradient, slots, count, lr):
            rules.update_in_place(*each)

    def _each(
        self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor
    ) -> Iterator[tuple[OptimizerConfig, Tensor, Tensor, Slots, Tensor, Tensor]]:
        for where, config, rate in self.sections:
            held = {name: slot[where] for name, slot in slots.items()}
            yield config, vector[where], gradient[where], held, count, lr if rate == 1 else lr * rate
