"""Dict and Tuple action spaces in training, checkpoints, evaluation and loaded policies."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from flows.cli.main import main
from flows.config.compose import compose
from rlcore import conformance, plugins
from rlcore.config.run import RunConfig
from rlcore.envs.make import make
from rlcore.envs.spaces import action_spec
from rlcore.errors import UserError
from rlcore.evaluation.policy import load_policy
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.functional.noise import Noise
from rlcore.spec import EnvSpec
from rlcore.train.trainer import Trainer
from tests.soaking import heavy

ENVS, DISTRIBUTION = "tests.probes.envs", "tests.probes.own_model"
OWN = ["env.id=Composite", f"env.wrapper._target_={ENVS}.CompositeActions", "env.num_envs=2"]
SMALL = ["algo.rollout_steps=16", "algo.total_steps=400"]


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes are a plugin that the user has named."""
    monkeypatch.setenv(plugins.VARIABLE, ENVS)


def config(algo: str, *overrides: str) -> RunConfig:
    return compose([f"exp={algo}", *OWN, *(overrides or SMALL), f"plugins=[{ENVS}]"])[0]


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ppo_recurrent"])
@pytest.mark.parametrize(
    "check",
    [
        conformance.interrupted_equals_uninterrupted,
        conformance.a_loaded_policy_acts_alike,
        pytest.param(conformance.compiled_equals_eager, marks=heavy),
    ],
    ids=lambda check: check.__name__,
)
def test_composite_actions_pass_conformance(check: Any, algo: str) -> None:
    check(config(algo))


@pytest.mark.parametrize("algo", ["ppo", "ppo_recurrent"])
def test_first_ratio_is_one_with_composite_actions(algo: str) -> None:
    conformance.first_ratio_is_one(config(algo))


@pytest.mark.slow
@heavy
def test_ppo_learns_composite_actions() -> None:
    training = Trainer(config("ppo", "algo.total_steps=16_384", "algo.rollout_steps=128", "algo.optimizer.lr=3e-3"))
    returns = (training.evaluate(episodes=20)["mean"] for number, _ in enumerate(training, 1) if number % 8 == 0)
    # Eight steps with four rewards of at most 1; the random policy's return is about 11.
    assert any(mean > 22 for mean in returns)


def test_vector_action_wrapper_gives_element_of_space() -> None:
    env = make(config("ppo").env)
    spec = action_spec(env.action_space)
    env.reset(seed=0)
    assert spec.shape == (8,) and spec.size == 7 and spec.names == ("arm/0", "arm/1", "keys", "lamps")
    vector = np.array([0.5, -1.0, 3.0, 7.0, 1.0, 3.0, 0.0, 1.0])
    inner: Any = env
    while not hasattr(inner, "action"):
        inner = inner.env
    found = inner.action(vector)
    assert env.action_space.contains(found)
    assert found["arm"][0].tolist() == [0.5, -1.0, 3.0] and int(found["arm"][1]) == 7
    assert found["keys"].tolist() == [1, 3] and found["lamps"].tolist() == [0, 1]
    env.step(vector)  # raises if the action is not an element of the space
    spec_of_env = EnvSpec("x", {}, spec)
    assert EnvSpec.from_json(json.loads(json.dumps(spec_of_env.to_json()))) == spec_of_env


def test_random_agent_draws_elements_of_composite_space() -> None:
    env = make(config("ppo").env)
    agent = RandomAgent(EnvSpec("x", {}, action_spec(env.action_space)))
    _, action, _ = agent.act((), {}, torch.ones(300, dtype=torch.bool), Noise(0, "policy"))
    taken = agent.to_env(action)
    env.reset(seed=0)
    for row in taken[:8].numpy():
        env.step(row)
    torch.testing.assert_close(agent.from_env(taken), action, rtol=1e-6, atol=1e-6)
    assert {*taken[:, 3].tolist()} == {5, 6, 7} and taken[:, 0].min() < -0.9 and taken[:, 0].max() > 1.9


def test_loaded_policy_returns_action_vector(tmp_path: Path) -> None:
    training = Trainer(config("ppo"))
    policy = load_policy(training.save(tmp_path))
    action = policy.predict({"state": np.zeros((3, 1), np.float32)})
    assert action.shape == (3, 8) and action.dtype == np.float64
    assert set(action[:, 3]) <= {5, 6, 7}


@pytest.mark.parametrize(
    ("algo", "message"),
    [("sac", "Composite actions"), ("dreamer_v3", "has a Dict or Tuple action space")],
)
def test_train_refuses_composite_actions(
    algo: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = ["algo.mlp_keys.encoder=[state]", "algo.cnn_keys.encoder=[]"] if algo == "dreamer_v3" else []
    assert main(["train", f"exp={algo}", "env=gym", *OWN, f"plugins=[{ENVS}]", *keys]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_own_distribution_refuses_composite_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.VARIABLE, f"{ENVS},{DISTRIBUTION}")
    with pytest.raises(
        UserError, match=f"^distribution.type={DISTRIBUTION}:Laplace: not available for a Dict or Tuple"
    ):
        Trainer(config("ppo", *SMALL, f"distribution.type={DISTRIBUTION}:Laplace"))


def test_action_spec_refuses_part_that_is_not_supported() -> None:
    with pytest.raises(UserError, match="only Box of .*, and Dict and Tuple of them, are supported"):
        action_spec(spaces.Dict({"text": spaces.Text(3)}))
    with pytest.raises(UserError, match="it is empty"):
        action_spec(spaces.Tuple(()))
