"""Trainer of an environment class, without a config file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from torch import Tensor

from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.envs.batched.env import BatchedEnv
from rlcore.errors import UserError
from rlcore.evaluation.policy import load_policy
from rlcore.store.checkpoint import nested_state
from rlcore.train.build import build


class Walk(BatchedEnv):
    """Position on a line; the reward is the negative distance from the origin."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    max_episode_steps = 10

    def __init__(self, num_envs: int, device: Any = "cpu", step_size: float = 0.1) -> None:
        super().__init__(num_envs, device)
        self.step_size = step_size

    def reset(self, config: Any) -> Tensor:
        self.state = {"position": self.random.uniform(-1.0, 1.0)}
        return self.state["position"][:, None]

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = self.state["position"] + self.step_size * (2 * action - 1)
        self.state = {"position": position}
        return position[:, None], -position.abs(), position.abs() > 2.0


def trainer(env: Any, **how: Any) -> Any:
    return build(a2c.Config(total_steps=400, rollout_steps=5, dense_units=8), env, **{"num_envs": 8, **how})


def bits(one: Any) -> Any:
    return nested_state.encode(one.state_dict())


def test_class_function_and_partial_train_to_same_bits() -> None:
    made = [trainer(env) for env in (Walk, lambda num_envs, device: Walk(num_envs, device), functools.partial(Walk))]
    for one in made:
        one.collect()
        one.update()
    assert bits(made[0]) == bits(made[1]) == bits(made[2]) and made[0].envs.num_envs == 8


def test_partial_reaches_evaluation() -> None:
    """With steps of length 0, the return of an episode depends on its start only: 10 times the start."""
    still, moving = trainer(functools.partial(Walk, step_size=0.0)), trainer(functools.partial(Walk, step_size=0.1))
    assert min(still.evaluate(20)["returns"]) >= -10.0 > min(moving.evaluate(20)["returns"])


def test_id_and_gymnasium_class_are_accepted() -> None:
    by_id = trainer("CartPole-v1")
    by_class = trainer(gymnasium.make("CartPole-v1").unwrapped.__class__)
    assert by_id.envs.spec.obs == by_class.envs.spec.obs


def test_saved_policy_acts_without_environment(tmp_path: Path) -> None:
    one = trainer(Walk)
    assert one.collect()["Game/steps"] == 40 and np.isfinite(one.update()["Loss/policy_loss"])
    policy = load_policy(one.save(tmp_path / "policy"))
    assert policy.predict(np.zeros((3, 1), np.float32)).shape == (3,)


def test_config_groups_are_checked() -> None:
    with pytest.raises(UserError, match=r"evaluation.episode"):
        trainer(Walk, config={"evaluation": {"episode": 3}})
    with pytest.raises(UserError, match=r"build\(env=3\)"):
        trainer(3)
