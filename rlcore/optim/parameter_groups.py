"""Parameter groups of an optimizer: the groups have one update rule, but different learning rates and weight decays."""

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

SHOWN = 10  # maximum number of parameter names in an error message


class Section(NamedTuple):
    """Parameter group.

    Attributes:
        where: slice of the parameter vector that contains the parameters of the group.
        config: settings of the group.
        rate: learning rate of the group, divided by the learning rate of the optimizer.
    """

    where: slice
    config: OptimizerConfig
    rate: float


def group_of(config: OptimizerConfig, name: str) -> int:
    """Return the number of the parameter group to which a parameter belongs.

    The key of a group is a pattern. It matches the name of a parameter, or the name of a module that contains the
    parameter. The first group whose pattern matches is used. Groups are numbered from 1, in the order of
    `config.groups`; 0 means that no pattern matches.
    """
    groups = enumerate(config.groups, 1)
    return next((i for i, p in groups if fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*")), 0)


class GroupedRule:
    """Update rule that applies the learning rate and the weight decay of each parameter group to its parameters.

    Args:
        config: update rule, settings of the optimizer, and settings of the groups.
        parameters: parameters, sorted by the group numbers that `group_of` returns.

    Raises:
        UserError: If a group matches no parameter.
    """

    def __init__(self, config: OptimizerConfig, parameters: FlatParameters) -> None:
        starts: dict[int, int] = {}
        for name, (start, _) in parameters.places.items():
            starts.setdefault(group_of(config, name), start)
        for i, pattern in enumerate(config.groups, 1):
            if i not in starts:
                names = [*parameters.places]
                there = f"{', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"
                raise UserError(
                    f"optimizer.groups: {pattern!r} matches no parameter (or only those of earlier groups); change "
                    f"or remove the pattern; the parameters are {there}"
                )
        patterns, ends = [*config.groups], [*[*starts.values()][1:], len(parameters.vector)]
        self.sections = [
            Section(slice(start, end), own, own.lr / config.lr)
            for (i, start), end in zip(starts.items(), ends, strict=True)
            for own in [config.of_group(patterns[i - 1]) if i else config]
        ]

    def update(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> tuple[Tensor, Slots]:
        """Compute parameters and optimizer state after one optimizer step.

        Arguments and results are those of `rlcore.optim.rules.update`, but without `config`.
        """
        updates = [rules.update(*each) for each in self._each(vector, gradient, slots, count, lr)]
        if len(updates) == 1:
            return updates[0]
        after = {name: torch.cat([state[name] for _, state in updates]) for name in slots}
        return torch.cat([part for part, _ in updates]), after

    def update_in_place(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> None:
        """Take one optimizer step that updates `vector` and `slots` in place.

        Arguments are those of `rlcore.optim.rules.update_in_place`, but without `config`.
        """
        for each in self._each(vector, gradient, slots, count, lr):
            rules.update_in_place(*each)

    def _each(
        self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor
    ) -> Iterator[tuple[OptimizerConfig, Tensor, Tensor, Slots, Tensor, Tensor]]:
        for where, config, rate in self.sections:
            state = {name: slot[where] for name, slot in slots.items()}
            yield config, vector[where], gradient[where], state, count, lr if rate == 1 else lr * rate
