"""Parameter groups: one update rule with a learning rate and a weight decay for each group."""

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
    """Parameter group: its slice of the parameter vector, its settings, and its learning rate over the global one."""

    where: slice
    config: OptimizerConfig
    rate: float


def group_of(config: OptimizerConfig, name: str) -> int:
    """Return the number of the group to which a parameter belongs, from 1 in the order of `config.groups`.

    A pattern matches the name of a parameter, or of a module that contains the parameter; the first match counts.
    Return 0 if no pattern matches.
    """
    groups = enumerate(config.groups, 1)
    return next((i for i, p in groups if fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*")), 0)


class GroupedRule:
    """Update rule that uses the learning rate and the weight decay of each parameter group.

    Args:
        config: update rule, global settings and settings of groups.
        parameters: parameters in the order of `group_of`.

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
                    f"optimizer.groups: {pattern!r} matches no parameter that an earlier group has not matched; "
                    f"the parameters are {there}"
                )
        patterns, ends = [*config.groups], [*[*starts.values()][1:], len(parameters.vector)]
        self.sections = [
            Section(slice(start, end), own, own.lr / config.lr)
            for (i, start), end in zip(starts.items(), ends, strict=True)
            for own in [config.of_group(patterns[i - 1]) if i else config]
        ]

    def update(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> tuple[Tensor, Slots]:
        """Compute one step; arguments and results are those of `rlcore.optim.rules.update`."""
        updates = [rules.update(*each) for each in self._each(vector, gradient, slots, count, lr)]
        if len(updates) == 1:
            return updates[0]
        after = {name: torch.cat([state[name] for _, state in updates]) for name in slots}
        return torch.cat([part for part, _ in updates]), after

    def update_in_place(self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor) -> None:
        """Apply one step in place; arguments are those of `rlcore.optim.rules.update_in_place`."""
        for each in self._each(vector, gradient, slots, count, lr):
            rules.update_in_place(*each)

    def _each(
        self, vector: Tensor, gradient: Tensor, slots: Slots, count: Tensor, lr: Tensor
    ) -> Iterator[tuple[OptimizerConfig, Tensor, Tensor, Slots, Tensor, Tensor]]:
        for where, config, rate in self.sections:
            state = {name: slot[where] for name, slot in slots.items()}
            yield config, vector[where], gradient[where], state, count, lr if rate == 1 else lr * rate
