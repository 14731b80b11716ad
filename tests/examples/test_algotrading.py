"""The trading example: a batched environment with masks, in which memory pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.trading import Holding, hold
from flows.config.compose import compose
from rlcore.conformance import interrupted_equals_uninterrupted
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.train.trainer import Trainer
from rlcore.types import TimeStep
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


def test_holding_earns_sum_of_price_changes() -> None:
    """Its return is the sum of the price changes of an episode, minus one fee of 0.5."""
    trainer, changes = trading("ppo_trading", "evaluation.num_envs=4"), list[Any]()

    def on_step(step: TimeStep, action: Any) -> None:
        changes.append(step.obs["market.change"][:, 0].tolist())

    result, length = evaluate_agent(Holding(), trainer.config, trainer.card, 8, on_step=on_step), 256
    earned = np.sum(changes[1 : length + 1], 0) - 0.5  # of episodes 0 to 3, which are played at the same time
    assert result["mean_length"] == length and np.allclose(result["returns"][:4], earned, atol=1e-3)
    assert hold(trainer, 8)["returns"] == result["returns"]


@pytest.mark.slow
@heavy
def test_memory_beats_no_memory_and_holding() -> None:
    """All three play the same episodes. Holding has a mean return near 0: both trends are equally likely."""
    results = dict[str, Any]()
    for preset in ("ppo_trading", "ppo_trading_window"):
        trainer = trading(preset, "algo.total_steps=400_000", "algo.compile=false")
        trainer.run()
        results[preset] = trainer.evaluate(200)
        results["holding"] = hold(trainer, 200)
    no_memory, memory = results["ppo_trading"], results["ppo_trading_window"]
    assert memory["ci95"][0] > no_memory["ci95"][1] > no_memory["ci95"][0] > results["holding"]["ci95"][1]
