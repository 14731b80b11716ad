"""Before the first function is built, another learner goes through an iteration in environments that are made up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled import machine_code, package
from rlcore.compiled.package import Compiled, Traced
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.errors import RunError
from rlcore.store.compare import tensor_digests
from rlcore.train.loop import Loop
from rlcore.train.rehearsal import DrawnEnvs, rehearse
from rlcore.train.training import Training
from tests.graphs import run_graphs
from tests.probes import q_learning
from tests.soaking import file_in_turn

pytestmark = file_in_turn


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The keys that were to be built together, in the order of asking."""
    asked: list[list[str]] = []

    def built(functions: list[Traced]) -> list[Compiled]:
        asked.append([each.key for each in functions])
        return run_graphs(functions)

    monkeypatch.setattr(machine_code, "build", built)
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    return asked


@pytest.fixture(autouse=True)
def off_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)


def training(algo: str, env_id: str = "CartPole-v1", vectorization: str = "single", **settings: Any) -> Training:
    own = {"total_steps": 10_000} | settings
    env = EnvConfig(id=env_id, num_envs=3, max_episode_steps=12, vectorization=vectorization)
    return Training(RunConfig(algo=build(ALGORITHMS[algo].Config, own, "algo."), env=env, seed=0), compiled=True)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "CartPole-v1", {"rollout_steps": 20, "dense_units": 8}),
    ("ppo", "Pendulum-v1", {"rollout_steps": 20, "dense_units": 8, "normalize_obs": True, "normalize_reward": True}),
    ("a2c", "CartPole-v1", {"rollout_steps": 5, "dense_units": 8}),
    ("q_learning", "CartPole-v1", {"learning_starts": 48}),
    ("sac", "Pendulum-v1", {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}),
    ("crossq", "Pendulum-v1", {"learning_starts": 6, "hidden_size": 8, "per_rank_batch_size": 8}),  # two kinds of step
]


@pytest.mark.parametrize(("algo", "env_id", "settings"), CASES)
def test_it_finds_every_function_of_the_training_and_leaves_its_bits_alone(
    algo: str, env_id: str, settings: dict[str, Any], builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for rehearsed in (True, False):
        with monkeypatch.context() as patch:
            if not rehearsed:
                patch.setattr("rlcore.train.training.rehearse", lambda *_: None)
            one = training(algo, env_id, **settings)
            for _ in range(6):
                one.collect()
                one.update()
            assert one.learner.updates and one.collector.compiled
            states.append(tensor_digests(one.state_dict()))
    together, *singly = builds
    assert len(set(together)) >= 2
    assert sorted(key for keys in singly for key in keys) == sorted(2 * together)
    assert states[0] == states[1]


def test_a_vector_that_writes_in_place_is_rehearsed_alike(builds: list[list[str]]) -> None:
    one = training("ppo", vectorization="native", rollout_steps=8, dense_units=8)
    one.collect()
    one.update()
    assert sorted(builds[0]) == sorted(key for keys in builds[1:] for key in keys)


@pytest.mark.parametrize("error", [ZeroDivisionError(), RunError("no environment gives such observations")])
def test_one_that_fails_costs_nothing_but_time(
    error: Exception, builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: DrawnEnvs, action: Any) -> Any:
        raise error

    monkeypatch.setattr(DrawnEnvs, "step", fails)
    one = training("ppo", rollout_steps=20, dense_units=8)
    one.collect()
    one.update()
    assert [len(keys) for keys in builds] == [1, 1, 1]  # acting in the rehearsal, and both again: nothing is kept here
    assert not machine_code.rehearsing()


def test_it_ends_though_nothing_is_ever_learned(builds: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.train.rehearsal.LIMIT", 0.3)
    one = training("q_learning", total_steps=10**7, learning_starts=10**6)
    began = time.monotonic()
    rehearse(one.context, one.envs)
    assert time.monotonic() - began < 60  # to learn would take far more


@pytest.mark.parametrize(("algo", "kinds"), [("sac", 1), ("crossq", 2)])
def test_an_update_of_many_gradient_steps_is_left_when_each_kind_was_taken(
    algo: str, kinds: int, builds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {
        "learning_starts": 6,
        "hidden_size": 8,
        "per_rank_batch_size": 8,
        "per_rank_pretrain_steps": 300,
    }
    one = training(algo, "Pendulum-v1", **small)
    loops: list[Loop] = []
    monkeypatch.setattr("rlcore.train.rehearsal.LIMIT", 1e9)
    monkeypatch.setattr("rlcore.train.rehearsal.Loop", lambda *parts: loops.append(Loop(*parts)) or loops[0])
    rehearse(one.context, one.envs)
    assert 0 < loops[0].learner.updates < 10
    assert [len(keys) for keys in builds] == [1 + kinds]  # acting, which begins after the random steps, is among them


def test_packages_are_checked_with_observations_that_tell_them_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Traced] = []
    monkeypatch.setattr(machine_code, "build", lambda functions: seen.extend(functions) or run_graphs(functions))
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    one = training("ppo", rollout_steps=20, dense_units=8)
    one.collect()
    acting = seen[0]
    (obs,) = [value for value in acting.example if value.shape == (3, 4) and value.dtype == torch.float32]
    assert acting.what == "acting" and len(obs.unique()) == 12
    blind = [torch.zeros_like(value) if value is obs else value for value in acting.example]
    with pytest.raises(RunError, match="wrong by"):
        package.check(lambda inputs: list(acting.graph(*blind)), acting)


def test_environments_on_a_device_are_rehearsed_there() -> None:
    spec = training("q_learning").envs.spec
    arrival = DrawnEnvs(spec, 3, torch.device("cpu")).reset()
    host = DrawnEnvs(spec, 3, None).reset()
    for key, rows in host.obs.items():
        tensor = arrival.obs[key]
        assert isinstance(tensor, torch.Tensor) and tensor.numpy().dtype == rows.dtype == spec.obs[key].dtype
        assert tensor.shape == rows.shape == (3, *spec.obs[key].shape)
