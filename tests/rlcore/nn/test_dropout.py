"""Dropout with a given noise stream: compared with the formula, compiled, and resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlcore import streams
from rlcore.compiled import machine_code
from rlcore.functional.noise import Noise
from rlcore.nn.dropout import Dropout
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from tests.graphs import run_graphs
from tests.rlcore.optim.test_optimizer import PLAIN, context


@pytest.mark.parametrize("purpose", ["loss", "probe"])
def test_dropout_zeroes_by_noise_and_keeps_mean(purpose: str) -> None:
    x = torch.arange(1.0, 2001.0).view(2, 1000).requires_grad_()
    words = streams.generator(3, purpose).bit_generator.random_raw(500).view(np.uint16)
    kept = (words < 0.75 * 2**16).reshape(2, 1000)
    out = Dropout(0.25)(x, Noise(3, purpose))
    expected = np.where(kept, x.detach().numpy() / 0.75, 0)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.03
    (gradient,) = torch.autograd.grad(out.sum(), x)
    np.testing.assert_allclose(gradient.numpy(), kept / 0.75, rtol=1e-6)


def test_dropout_draws_nothing_without_noise_or_rate() -> None:
    x, rng = torch.ones(4, 3, dtype=torch.bfloat16), Noise(0, "loss")
    assert torch.equal(Dropout(0.5)(x, None), x) and torch.equal(Dropout(0.0)(x, rng), x)
    assert rng.host.random() == Noise(0, "loss").host.random()
    assert Dropout(0.5)(x, rng).dtype == torch.bfloat16


class Small:
    """Loss with dropout."""

    def __init__(self, compiled: bool) -> None:
        given = context(compiled=compiled)
        self.module, self.dropout, self.noise = nn.Linear(3, 2), Dropout(0.5), Noise(0, "loss")
        with torch.no_grad():
            self.module.weight.copy_(torch.arange(6.0).view(2, 3))
            self.module.bias.zero_()
        self.optimizer = Optimizer(self.module, self.loss, PLAIN, given)
        self.step = Step(self.gradient_step, [self.optimizer], [], given)

    def loss(self, x: Tensor, rng: Any) -> Any:
        total = self.dropout(self.module(x), rng).square().sum()
        return total, torch.tensor(float(len(x))), {"loss": total.detach()}

    def gradient_step(self, x: Tensor, rng: Any) -> dict[str, Tensor]:
        return self.optimizer.minimize(x, rng).metrics

    def run(self, count: int) -> list[float]:
        return [self.step(torch.ones(4, 3), rng=self.noise)["loss"].item() for _ in range(count)]


def test_compiled_dropout_draws_same_masks_as_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "build", run_graphs)
    eager, compiled = Small(False).run(5), Small(True).run(5)
    assert compiled == pytest.approx(eager, rel=1e-5) and len(set(eager)) > 1


def test_dropout_resumes_with_same_masks() -> None:
    whole, first, second = (Small(False) for _ in range(3))
    losses = whole.run(6)
    first.run(3)
    for name in ("module", "noise", "optimizer"):
        getattr(second, name).load_state_dict(getattr(first, name).state_dict())
    assert second.run(3) == losses[3:]
