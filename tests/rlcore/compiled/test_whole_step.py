"""Parameters and buffers of modules that a traced function reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlcore.compiled.whole_step import CapturedTensors


class Twice(nn.Module):
    """Module whose layer is part of two others, like an encoder of an actor and of its agent; a weight is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tied = nn.Linear(2, 2), nn.Linear(2, 2)
        self.one, self.other = nn.Sequential(self.layer), nn.Sequential(self.layer)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.tied(self.one(self.other(x)))


def test_captured_tensors_replace_and_restore_shared_parameters() -> None:
    twice = Twice()
    captured, own = CapturedTensors([twice, twice.one]), dict(twice.named_parameters(remove_duplicate=False))
    assert len(captured) == 3  # the shared weight and two biases
    with captured.replaced([torch.zeros_like(value) for value in captured.tensors()]):
        assert not twice(torch.ones(1, 2)).any()
    assert twice(torch.ones(1, 2)).any()
    assert all(value is own[name] for name, value in twice.named_parameters(remove_duplicate=False))
    assert all(isinstance(value, nn.Parameter) for value in twice.parameters())
