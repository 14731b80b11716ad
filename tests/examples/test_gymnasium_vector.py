"""Gymnasium's vectorized environments as batched environments: equal to Gymnasium, trained, evaluated and resumed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from flows.config.compose import compose
from rlcore.config.run import RunConfig
from rlcore.conformance import interrupted_equals_uninterrupted
from rlcore.envs.vector.choose import make_vector_env
from rlcore.train.trainer import Trainer
from tests import processes

EXAMPLE = processes.ROOT / "examples/gymnasium_vector"
SMALL = [
    "exp=ppo",
    "env=batched",
    "env.wrapper._target_=gymnasium_vector.GymnasiumVector",
    "plugins=[gymnasium_vector]",
    "env.num_envs=4",
    "algo.rollout_steps=16",
    "algo.total_steps=1000",
]
pytestmark = pytest.mark.usefixtures("folder")


def small(env_id: str, *more: str) -> RunConfig:
    return compose([*SMALL, f"env.id={env_id}", f"env.wrapper.env_id={env_id}", *more])[0]


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"vectorization_mode": "sync"}),
        ("Pendulum-v1", {}),
    ],
)
def test_plugin_returns_values_of_gymnasium(env_id: str, arguments: dict[str, Any]) -> None:
    typed = [f"env.wrapper.{name}={value}" for name, value in {**arguments, "max_episode_steps": 15}.items()]
    envs = make_vector_env(small(env_id, *typed).env, num_envs=4, seed=3)
    first = envs.reset()
    oracle = gymnasium.make_vec(env_id, 4, max_episode_steps=15, **arguments)
    seed = envs.env.envs.np_random_seed
    obs = oracle.reset(seed=seed if isinstance(seed, int) else [*seed])[0]
    assert np.array_equal(first.obs["state"], obs)
    rng, ended = np.random.default_rng(0), 0
    for _ in range(60):
        discrete = env_id == "CartPole-v1"
        action = rng.integers(2, size=4) if discrete else rng.uniform(-2, 2, (4, 1)).astype(np.float32)
        step, (obs, reward, terminated, truncated, _) = envs.step(torch.from_numpy(action)), oracle.step(action)
        assert np.array_equal(step.obs["state"], obs) and np.array_equal(step.reward, reward.astype(np.float32))
        assert (step.terminated.tolist(), step.truncated.tolist()) == (terminated.tolist(), truncated.tolist())
        ended += int((terminated | truncated).sum())
    assert len(envs.pop_episodes()) == ended > 4
    envs.close()


@pytest.mark.parametrize("algo", ["exp=ppo", "exp=sac"])
def test_training_in_plugin_resumes_exactly(algo: str) -> None:
    env_id = "CartPole-v1" if algo == "exp=ppo" else "Pendulum-v1"
    words = [word for word in SMALL[1:] if algo == "exp=ppo" or not word.startswith("algo.rollout_steps")]
    more = [] if algo == "exp=ppo" else ["algo.learning_starts=40", "algo.hidden_size=8", "env.max_episode_steps=20"]
    interrupted_equals_uninterrupted(
        compose([algo, *words, f"env.id={env_id}", f"env.wrapper.env_id={env_id}", *more])[0]
    )


def test_evaluation_does_not_depend_on_number_of_environments() -> None:
    found = []
    for count in (1, 4):
        one = Trainer(small("CartPole-v1", f"evaluation.num_envs={count}"))
        assert one.card["tier"] == "boundary"
        found.append(one.evaluate(6)["returns"])
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_plugin_is_short() -> None:
    assert len((EXAMPLE / "gymnasium_vector.py").read_text().splitlines()) <= 60
