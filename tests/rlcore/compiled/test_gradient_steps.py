"""Compiled gradient steps equal eager ones, also after updates have changed the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import machine_code
from rlcore.compiled.package import Compiled, TracedFunction
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.train.trainer import Trainer
from rlcore.types import Batch
from tests.graphs import run_graphs
from tests.soaking import always, heavy

pytestmark = heavy


@pytest.fixture(autouse=True)
def built_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the names of built functions; they run as traced graphs, and tests/contract compares machine code."""
    names: list[str] = []

    def build_graphs(functions: list[TracedFunction]) -> list[Compiled]:
        names.extend(each.what for each in functions)
        return run_graphs(functions)

    monkeypatch.setattr(machine_code, "build", build_graphs)
    monkeypatch.setattr("rlcore.train.trainer.warm_up", lambda *_: None)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    return names


def training(
    algo: str, rollout_steps: int, vectorization: str = "single", compiled: bool = True, **settings: Any
) -> Trainer:
    values = {"total_steps": 10_000, "dense_units": 8, "rollout_steps": rollout_steps} | settings
    env = EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=7, vectorization=vectorization)
    return Trainer(RunConfig(algo=build(ALGORITHMS[algo].Config, values, "algo."), env=env, seed=0), compiled=compiled)


def weights(one: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in one.learner.agent.parameters()]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a rollout at once": ("a2c", {}),
    "in parts that do not come out even": ("a2c", {"per_rank_batch_size": 4}),
    "of one row": ("a2c", {"rollout_steps": 1}),
    "of many rows": ("a2c", {"rollout_steps": 40}),
    "scaled rewards": ("a2c", {"normalize_reward": True, "normalize_advantages": True}),
    "minibatches": ("ppo", {"per_rank_batch_size": 4, "update_epochs": 2, "normalize_advantages": True}),
    "groups that do not come out even": ("ppo", {"per_rank_batch_size": 6, "accumulate_minibatches": 2}),
    "a step that is not taken": ("ppo", {"per_rank_batch_size": 4, "target_kl": 1e-9}),
    "options of rl8": (
        "ppo",
        {"per_rank_batch_size": 4, "accumulate_minibatches": None, "value_loss": "smooth_l1", "value_loss_cap": 0.5},
    ),
    "states reset by a clock": (
        "ppo_recurrent",
        {"rollout_steps": 6, "per_rank_sequence_length": 2, "sequences_per_state_reset": 2, "per_rank_num_batches": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_updates_match_eager_updates(case: str, built_names: list[str]) -> None:
    algo, settings = CASES[case]
    changes = {"rollout_steps": 5, "normalize_obs": True} | settings
    one, plain = training(algo, **changes), training(algo, **changes, compiled=False)
    for _ in range(4):
        for each in (one, plain):
            each.collect()
            each.update()
        for ours, theirs in zip(weights(one), weights(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        assert one.learner.updates == plain.learner.updates
        plain.load_state_dict(one.state_dict())
    assert built_names == ["policy inference", "the gradient step"]


def test_rollout_parts_accumulate_gradient_of_whole() -> None:
    """Parts have equal length: the last one repeats the first rows with weight 0."""
    whole, parts = (training("a2c", 5, compiled=False, per_rank_batch_size=size) for size in (None, 4))
    for each in (whole, parts):
        each.collect()
        each.update()
    for ours, theirs in zip(weights(parts), weights(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@always
def test_compiled_step_refuses_other_input_shapes() -> None:
    one = training("a2c", 5)
    one.collect()
    one.update()
    steps, last = one.collector.collect(4)
    with pytest.raises(AssertionError, match="compiled for other shapes"):
        one.learner.update(Batch(steps, last, 0), one.rng)


def train_iterations(one: Trainer, iterations: int) -> list[torch.Tensor]:
    for _ in range(iterations):
        one.collect()
        one.update()
    return weights(one)


@pytest.mark.parametrize(("algo", "vectorization"), [("a2c", "single"), ("a2c", "native"), ("ppo", "native")])
def test_compiled_training_resumes_to_same_bits(algo: str, vectorization: str) -> None:
    whole, first, second = (training(algo, 5, vectorization, normalize_obs=True) for _ in range(3))
    train_iterations(first, 6)
    second.load_state_dict(first.state_dict())
    for ours, theirs in zip(train_iterations(whole, 11), train_iterations(second, 5), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_native_vectorization_trains_to_same_bits_as_single(algo: str) -> None:
    one, other = (train_iterations(training(algo, 5, vectorization), 8) for vectorization in ("single", "native"))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))
