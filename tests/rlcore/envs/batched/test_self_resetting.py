"""Batched environments that reset ended copies themselves: episodes, time limits, truncation at checkpoints, resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.config.groups import EnvConfig
from rlcore.conformance import check_batched_env
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.batched.self_resetting import SelfResettingVectorEnv
from rlcore.envs.make import EnvSettings
from rlcore.envs.suites.own import give
from rlcore.envs.vector.choose import check_batched_options, make_vector_env
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.types import Episode
from tests.rlcore.envs.batched.test_checks import Walk
from tests.rlcore.envs.batched.test_parameters import run

ACTION = torch.zeros(2, dtype=torch.int64)


class Machine(BatchedEnv):
    """Copy b ends after b + 2 steps; its observation is the seed of all copies and the number of its steps."""

    observation_space = spaces.Box(0, 2**20, (2,))
    action_space = spaces.Discrete(2)
    capturable, tier = False, "boundary"
    open = 0  # number of instances that are not closed

    class Config:
        bonus: float = 0.0

    def __init__(self, num_envs: int, device: Any = "cpu", max_episode_steps: int | None = 8) -> None:
        super().__init__(num_envs, device)
        self.max_episode_steps = max_episode_steps
        Machine.open += 1

    def reset(self, config: Any) -> Tensor:
        self.seed, self.steps = float(self.random.integers(2**20)[0]), self.ones(0.0)
        self.ended = torch.zeros(self.num_envs, dtype=torch.bool)
        return self.show()

    def step(self, action: Tensor) -> Transition:
        self.steps = torch.where(self.ended, 0.0, self.steps + 1)
        terminated = self.steps == torch.arange(self.num_envs) + 2
        truncated = self.steps == (self.max_episode_steps or -1)
        self.ended = terminated | truncated
        return self.show(), self.steps + self.config.bonus, terminated, truncated

    def close(self) -> None:
        Machine.open -= 1

    def show(self) -> Tensor:
        return torch.stack([self.ones(self.seed), self.steps], 1)


def machine(limit: int | None = None, **settings: Any) -> SelfResettingVectorEnv:
    config = EnvSettings("Machine", {"_target_": give(Machine)}, max_episode_steps=limit, **settings)
    return make_vector_env(config, num_envs=2, seed=0)


def test_step_after_end_has_first_observation_of_next_episode() -> None:
    envs = machine()
    steps = [envs.reset(), *(envs.step(ACTION) for _ in range(4))]
    assert torch.stack([step.obs["state"][:, 1] for step in steps]).tolist() == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]]
    assert torch.stack([step.reward for step in steps]).tolist() == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]]
    assert torch.stack([step.is_first for step in steps]).sum(1).tolist() == [2, 0, 0, 1, 1]
    assert envs.pop_episodes() == [Episode(0, 3.0, 2), Episode(1, 6.0, 3)]


def test_environment_gets_time_limit_of_config() -> None:
    envs = machine(limit=1)
    envs.reset()
    assert envs.env.max_episode_steps == 1
    assert [envs.step(ACTION).truncated.tolist() for _ in range(3)] == [[True] * 2, [False] * 2, [True] * 2]


def test_boundary_truncates_and_next_step_starts_all_copies() -> None:
    envs = machine()
    first = envs.reset()
    envs.step(ACTION)
    envs.step(ACTION)  # copy 0 ends
    cut = envs.boundary()
    assert cut is not None and envs.boundary() is cut
    assert (cut.terminated.tolist(), cut.truncated.tolist()) == ([True, False], [False, True])
    assert envs.pop_episodes() == [Episode(0, 3.0, 2), Episode(1, 3.0, 2)]
    new = envs.step(ACTION)
    assert new.is_first.all() and not new.reward.any() and not new.truncated.any()
    assert (new.obs["state"][:, 0] != first.obs["state"][:, 0]).all()
    assert envs.step(ACTION).obs["state"][:, 1].tolist() == [1, 1] and envs.pop_episodes() == []


def test_saved_state_continues_with_same_bits() -> None:
    envs = machine()
    envs.reset()
    envs.step(ACTION)
    with pytest.raises(RunError, match="call boundary\\(\\) before state_dict"):
        envs.state_dict()
    envs.boundary()
    again = machine()
    again.load_state_dict(envs.state_dict())
    assert again.boundary() is again.last
    for _ in range(6):
        assert all(map(torch.equal, again.step(ACTION).obs.values(), envs.step(ACTION).obs.values()))
    assert again.pop_episodes() == envs.pop_episodes() != []


def test_card_has_tier_boundary_and_closes_environments() -> None:
    Machine.open = 0
    card = check_batched_env(Machine)
    assert (card["tier"], card["tested"]["steps"], card["max_episode_steps"]) == ("boundary", 6 * 60, 8)
    assert card["tier_reason"] == "its class declares that its state cannot be saved" and Machine.open == 0


class Unseeded(Machine):
    """Continues its random numbers after a reset."""

    def reset(self, config: Any) -> Tensor:
        obs = super().reset(config)
        self.resets = getattr(self, "resets", 0) + 1
        return obs + self.resets - 1


class ThreeValues(Machine):
    def step(self, action: Tensor) -> Any:
        return super().step(action)[:3]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Unseeded, "a saved state does not continue exactly"),
        (ThreeValues, "step returned 3 values, expected a tuple of observation, reward, terminated and truncated"),
    ],
)
def test_card_names_fault(env: type[BatchedEnv], message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        check_batched_env(env)


def test_environment_that_reads_values_is_played_shorter_and_not_compiled() -> None:
    class Declared(Walk):
        capturable = False

        def step(self, action: Tensor) -> Any:
            return super().step(action if float(action.sum()) >= 0 else 1 - action)

    card = check_batched_env(Declared)
    assert (card["tier"], card["tested"]["steps"]) == ("snapshot", 6 * 60)
    envs = make_vector_env(EnvSettings("Declared", {"_target_": give(Declared)}), num_envs=2, seed=0)
    envs.reset()
    compiler: Any = None  # is not used
    envs.compile(compiler)
    assert not envs.capturable and envs.compiled is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endless": True}, "env.endless=true: Machine starts its episodes itself"),
        ({"config": {"bonus": {"uniform": [0, 1]}}}, r"env.config.bonus=.*: must be a number, because Machine starts"),
    ],
)
def test_settings_of_each_episode_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        machine(**settings)


def test_distribution_is_refused_for_evaluations_and_restarts() -> None:
    drawn = {"bonus": {"uniform": [0, 1]}}
    env = EnvConfig(id="Machine", wrapper={"_target_": give(Machine)})
    with pytest.raises(UserError, match=r"evaluation.env_config.bonus=.*: must be a number"):
        check_batched_options(run(env, env_config=drawn))
    envs = machine(config={"bonus": 1.0})
    with pytest.raises(UserError, match=r"env_config.bonus=.*: must be a number"):
        envs.restart(drawn, 0)
    envs.restart({"bonus": 2.0}, 0)
    assert envs.step(ACTION).reward.tolist() == [3, 3]
