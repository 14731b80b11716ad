"""Parameters of modules that a traced function reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.compiled.captured import Reading


class Twice(nn.Module):
    """Module whose layer is part of two others, like an encoder of an actor and of its agent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.one, self.other = nn.Sequential(self.layer), nn.Sequential(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.other(x))


def test_reading_restores_shared_module_parameters() -> None:
    twice = Twice()
    module = Reading(nn.ModuleList([twice]), twice.forward)
    own = dict(module.named_parameters())
    given = {name: torch.zeros_like(value) for name, value in own.items()}
    assert not module.call(given, (torch.ones(1, 2),)).any()
    assert all(value is own[name] for name, value in module.named_parameters())
    assert all(isinstance(value, nn.Parameter) for value in module.parameters())
