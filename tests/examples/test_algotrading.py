"""The trading example: a batched environment with masks, in which memory pays."""

from __future__ import annotations

import pytest

from flows.config.compose import compose
from rlcore.conformance import interrupted_equals_uninterrupted
from rlcore.train.trainer import Trainer
from tests import processes
from tests.soaking import heavy

EXAMPLE = processes.ROOT / "examples/algotrading"


pytestmark = pytest.mark.usefixtures("folder")


def trading(preset: str, *overrides: str) -> Trainer:
    return Trainer(compose([f"exp={preset}", "plugins=[algotrading]", *overrides])[0])


@pytest.mark.parametrize("preset", ["ppo_trading", "ppo_trading_window", "ppo_trading_transformer", "ppo_trading_lstm"])
def test_trading_presets_resume_exactly(preset: str) -> None:
    small = ["env.num_envs=4", "env.max_episode_steps=12", "algo.rollout_steps=16", "algo.total_steps=1000"]
    interrupted_equals_uninterrupted(compose([f"exp={preset}", "plugins=[algotrading]", *small])[0])


@pytest.mark.slow
@heavy
def test_memory_beats_no_memory_and_holding() -> None:
    """Holding the asset has a mean return near 0, because both trends are equally likely."""
    returns = {}
    for preset in ("ppo_trading", "ppo_trading_window"):
        trainer = trading(preset, "algo.total_steps=400_000", "algo.compile=false")
        trainer.run()
        returns[preset] = trainer.evaluate(200)
    no_memory, memory = returns.values()
    assert memory["ci95"][0] > no_memory["ci95"][1] > no_memory["ci95"][0] > 20
