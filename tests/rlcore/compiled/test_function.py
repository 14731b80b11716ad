"""What is compiled around an update says what it says as it is written, whatever an update has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.actor_critic import ActorCriticLearner
from rlcore.algorithms.short_rollouts import ROWS
from rlcore.compiled import machine_code
from rlcore.compiled.package import Compiled, Traced
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.config.schema import build
from rlcore.train.training import Training
from rlcore.types import Batch
from tests.graphs import run_graphs


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was built: the traced graph in the place of machine code, whose numbers tests/contract holds against it."""
    names: list[str] = []

    def build_graphs(functions: list[Traced]) -> list[Compiled]:
        names.extend(each.what for each in functions)
        return run_graphs(functions)

    monkeypatch.setattr(machine_code, "built", build_graphs)
    monkeypatch.setattr("rlcore.train.training.rehearse", lambda *_: None)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    return names


def training(algo: str, rollout_steps: int, vectorization: str = "single", **settings: Any) -> Training:
    values = {"total_steps": 10_000, "dense_units": 8, "rollout_steps": rollout_steps} | settings
    env = EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=7, vectorization=vectorization)
    return Training(RunConfig(algo=build(ALGORITHMS[algo].Config, values, "algo."), env=env, seed=0), compiled=True)


@pytest.mark.parametrize(("algo", "length"), [("a2c", 5), ("a2c", 1), ("ppo", ROWS)])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_short_rollouts_samples_are_those_of_the_plain_code(
    algo: str, length: int, normalize_obs: bool, built: list[str]
) -> None:
    one = training(algo, length, normalize_obs=normalize_obs)
    learner: ActorCriticLearner = one.learner  # pyright: ignore[reportAssignmentType]
    for _ in range(4):
        before = one.policy_steps
        steps, last = one.collector.collect(length)
        batch = Batch(steps, last, before)
        for found, expected in zip(learner.samples(batch), learner.prepare(batch), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        learner.update(batch, one.rng)
    assert "preparing a rollout" in built


@pytest.mark.parametrize("settings", [{"rollout_steps": ROWS + 1}, {"normalize_reward": True}])
def test_what_is_no_short_function_of_tensors_runs_as_it_is_written(settings: dict[str, Any], built: list[str]) -> None:
    one = training("a2c", settings.pop("rollout_steps", 5), **settings)
    one.collect()
    one.update()
    assert built == ["acting", "the minibatch step"]


def test_other_shapes_are_refused() -> None:
    one = training("a2c", 5)
    one.collect()
    one.update()
    steps, last = one.collector.collect(4)
    with pytest.raises(AssertionError, match="compiled for other shapes"):
        one.learner.update(Batch(steps, last, 0), one.rng)


def moved(one: Training, iterations: int) -> list[torch.Tensor]:
    for _ in range(iterations):
        one.collect()
        one.update()
    return [parameter.clone() for parameter in one.learner.agent.parameters()]


@pytest.mark.parametrize(("algo", "vectorization"), [("a2c", "single"), ("a2c", "native"), ("ppo", "native")])
def test_training_goes_on_from_a_stored_state_to_the_same_bits(algo: str, vectorization: str) -> None:
    whole, first, second = (training(algo, 5, vectorization, normalize_obs=True) for _ in range(3))
    moved(first, 6)
    second.load_state_dict(first.state_dict())
    for ours, theirs in zip(moved(whole, 11), moved(second, 5), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_the_vectorised_environment_trains_to_the_bits_of_single_ones(algo: str) -> None:
    one, other = (moved(training(algo, 5, vectorization), 8) for vectorization in ("single", "native"))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))
