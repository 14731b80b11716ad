"""The auto-regressive action distribution in examples/: it is short, passes its checks, and PPO learns with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flows.config.compose import compose
from rlcore import conformance
from rlcore.config.run import RunConfig
from rlcore.train.trainer import Trainer
from tests import processes
from tests.soaking import heavy

EXAMPLE = processes.ROOT / "examples/autoregressive"
OVERRIDES = [
    "exp=ppo",
    "env.id=Pairs",
    "env.wrapper._target_=autoregressive.Pairs",
    "algo.model=autoregressive:Net",
    "distribution.type=autoregressive:PairOfChoices",
    "plugins=[autoregressive]",
    "algo.total_steps=12_288",
]


pytestmark = pytest.mark.usefixtures("folder")


def test_autoregressive_example_is_short() -> None:
    assert len((EXAMPLE / "autoregressive.py").read_text().splitlines()) <= 85


@pytest.mark.parametrize("check", conformance.DISTRIBUTION_CHECKS, ids=lambda check: check.__name__)
def test_autoregressive_distribution_passes_conformance(check: Callable[[RunConfig], None]) -> None:
    check(compose([*OVERRIDES, "algo.rollout_steps=16"])[0])


@pytest.mark.slow
@heavy
def test_ppo_learns_autoregressive_choice() -> None:
    training = Trainer(compose([*OVERRIDES, "algo.anneal_lr=false", "algo.optimizer.lr=3e-3"])[0])
    for _ in training:
        pass
    # The random policy's return is 16/5 = 3.2.
    assert training.evaluate(episodes=20)["mean"] > 8
