"""Weights of imagined steps (probability that the episode continues) against a loop over steps and states."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v1 import learner as v1
from rlcore.algorithms.dreamer.dreamer_v2 import learner as v2
from rlcore.algorithms.dreamer.dreamer_v3 import learner as v3
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.world_keys import MomentsConfig
from rlcore.functional.scalars import TwoHot, UnitNormal
from tests.golden import test_dreamer_v1_golden, test_dreamer_v2_golden, test_dreamer_v3_golden
from tests.golden.imagined import Heads, objectives

GAMMA, HORIZON, COUNT, SIZE, CHOICES = 0.9, 6, 8, 5, 3
MUTANTS = {
    v1: test_dreamer_v1_golden.MUTANTS,
    v2: test_dreamer_v2_golden.MUTANTS,
    v3: test_dreamer_v3_golden.MUTANTS,
}
NOTICED = (
    "weights one step off",
    "discount one step off",
    "weights with a gradient",
)  # V3 uses the more likely class, which has no gradient
WRONG = [(module, name) for module, mutants in MUTANTS.items() for name in mutants if name in NOTICED]


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def weights_by_loop(module: ModuleType, logits: list[list[float]], ended: list[bool]) -> list[list[float]]:
    """Return the weights [row][state] from the continue logits of states and the end flags of the first states.

    V1 and V2 (arXiv:1912.01603's and arXiv:2010.02193's code): the product of the discounts of earlier states, which
    their heads predict including γ; V1 starts at the first imagined state, V2 at the start state of imagination,
    whose end flag is known. V3 (arXiv:2301.04104v1's code): the more likely class times γ, with the state's own.
    """
    rows: list[list[float]] = []
    weight = [1.0] * len(ended)
    for k, row in enumerate(logits[1:] if module is v1 else logits):
        if module is v3:
            weight = [w * (not e if k == 0 else GAMMA * (x > 0)) for w, x, e in zip(weight, row, ended, strict=True)]
        rows.append(weight)
        if module is not v3:
            first = module is v2 and k == 0
            weight = [
                w * (GAMMA * (not e) if first else sigmoid(x)) for w, x, e in zip(weight, row, ended, strict=True)
            ]
    return rows[:-1]  # the last state has no step


def check_weights(module: ModuleType) -> None:
    number: Any = TwoHot(9) if module is v3 else UnitNormal()
    shapes = {"reward": number.outputs, "critic": number.outputs, "slow": number.outputs, "actor": CHOICES}
    weights: dict[str, Any] = {name: random(SIZE, size, seed=i) for i, (name, size) in enumerate(shapes.items())}
    ends = random(SIZE, seed=5).requires_grad_()
    heads = Heads(number, **weights, ends=ends, bell=torch.zeros(number.outputs, dtype=torch.float64))
    feat, action = random(HORIZON + 1, COUNT, SIZE, seed=6), torch.zeros(HORIZON, COUNT, dtype=torch.int64)
    terminated = torch.arange(COUNT) % 3 == 0
    more: dict[str, Any] = {} if module is v1 else {"mix": 0.5}
    more |= {"moments": ReturnScale(MomentsConfig())} if module is v3 else {}
    config = module.Config(total_steps=1, gamma=GAMMA)
    found = objectives(module, config, heads, feat, action, terminated, **more)[0][3]["weight"]
    expected = torch.tensor(weights_by_loop(module, (feat @ ends).tolist(), terminated.tolist()), dtype=torch.float64)
    assert not found.requires_grad
    assert found.shape == expected.shape, (found.shape, expected.shape)
    gap = (found - expected).abs().max().item()
    assert gap < 1e-6, f"weights differ by {gap:.1e}"


@pytest.mark.parametrize("module", MUTANTS, ids=lambda m: m.__name__.split(".")[-2])
def test_imagined_weights_match_loop_over_steps(module: ModuleType) -> None:
    check_weights(module)


@pytest.mark.parametrize(
    ("module", "name"), WRONG, ids=lambda x: x if isinstance(x, str) else x.__name__.split(".")[-2]
)
def test_weights_check_detects_mutant(module: ModuleType, name: str) -> None:
    with MUTANTS[module][name].applied(), pytest.raises(AssertionError):
        check_weights(module)
