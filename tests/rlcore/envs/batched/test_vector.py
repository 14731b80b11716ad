"""Vectorized environment of a batched environment: resets, episodes, time limits, seeds, saving and restoring."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlcore.config.groups import EnvConfig
from rlcore.envs.batched.env import BatchedEnv, Transition
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.make import make
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import RunError, UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Episode


class Counter(BatchedEnv):
    """Copy b ends after b + 2 steps; the observation is the number of steps, the reward its square."""

    observation_space = spaces.Box(0, 100, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, config: object) -> Tensor:
        self.state = {"n": self.ones(0.0)}
        return self.state["n"][:, None]

    def step(self, action: Tensor) -> Transition:
        n = self.state["n"] + 1
        self.state = {"n": n}
        return n[:, None], n.square(), n == torch.arange(self.num_envs) + 2


SPEC = EnvSpec("counter", {"state": ArraySpec((1,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))
ACTION = torch.zeros(2, dtype=torch.int64)


def counter(limit: int | None = None) -> BatchedVectorEnv:
    return BatchedVectorEnv(Counter(2), SPEC, EpisodeSeeds(0, "env"), limit, {"state": ()})


def cartpole(num_envs: int, **options: Any) -> BatchedVectorEnv:
    return make_vector_env(EnvConfig(id="batched/CartPole-v1"), num_envs=num_envs, seed=3, **options)


def test_step_after_end_resets_that_copy_alone() -> None:
    envs = counter()
    steps = [envs.reset(), *(envs.step(ACTION) for _ in range(4))]
    assert torch.stack([step.obs["state"][:, 0] for step in steps]).tolist() == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0]]
    assert torch.stack([step.reward for step in steps]).tolist() == [[0, 0], [1, 1], [4, 4], [0, 9], [1, 0]]
    assert torch.stack([step.is_first for step in steps]).tolist() == [
        [True] * 2,
        [False] * 2,
        [False] * 2,
        [True, False],
        [False, True],
    ]
    assert [step.terminated.tolist() for step in steps[2:4]] == [[True, False], [False, True]]
    assert envs.pop_episodes() == [Episode(0, 5.0, 2), Episode(1, 14.0, 3)]
    assert envs.pop_episodes() == []


def test_time_limit_truncates_and_counts_steps_of_the_episode() -> None:
    envs = counter(limit=2)
    envs.reset()
    steps = [envs.step(ACTION) for _ in range(5)]
    assert [step.truncated.tolist() for step in steps] == [
        [False] * 2,
        [True] * 2,
        [False] * 2,
        [False] * 2,
        [True] * 2,
    ]
    assert steps[1].terminated.tolist() == [True, False]


def test_restored_state_continues_with_same_bits() -> None:
    first, second, noise = cartpole(16), cartpole(16), torch.Generator().manual_seed(0)
    first.reset()
    actions = torch.randint(2, (90, 16), generator=noise)
    for action in actions[:40]:
        first.step(action)
    second.load_state_dict(first.state_dict())
    third = cartpole(16)
    third.load_state_dict(second.state_dict())  # saved again before the first step
    here, saved = first.boundary(), third.boundary()
    assert here is not None
    assert saved is not None
    assert torch.equal(here.obs["state"], saved.obs["state"])
    second = third
    for action in actions[40:]:
        one, two = first.step(action), second.step(action)
        assert torch.equal(one.obs["state"], two.obs["state"])
        assert torch.equal(one.is_first, two.is_first)
    assert first.pop_episodes() == second.pop_episodes() != []


def test_load_refuses_other_number_of_copies() -> None:
    with pytest.raises(RunError, match="num_envs=2, but num_envs is 3"):
        cartpole(3).load_state_dict(cartpole(2).state_dict())


def test_episode_seeds_do_not_depend_on_number_of_copies() -> None:
    starts = {}
    for count in (2, 5):  # evaluation: episode number = copy + count · index
        seeds = EpisodeSeeds(3, "env_eval", (0,), stride=count)
        envs = cartpole(count, seeds=seeds)
        starts[count] = torch.cat([envs.reset().obs["state"] for _ in range(10 // count)])
    assert torch.equal(starts[2], starts[5])
    assert len(starts[2].unique(dim=0)) == 10


def test_ranks_have_different_episodes() -> None:
    assert not torch.equal(cartpole(2, rank=0).reset().obs["state"], cartpole(2, rank=1).reset().obs["state"])


def test_wrapper_of_single_environments_is_refused() -> None:
    config = EnvConfig(id="batched/CartPole-v1", reward_as_observation=True)
    with pytest.raises(UserError, match="RewardAsObservation changes single environments"):
        make_vector_env(config, num_envs=2, seed=0)


def test_view_of_one_copy_repeats_its_episodes() -> None:
    with closing(make(EnvConfig(id="batched/Pendulum-v1"))) as env:
        starts = [env.reset(seed=5)[0]["state"], env.reset()[0]["state"], env.reset()[0]["state"]]
        assert np.array_equal(env.reset(seed=5)[0]["state"], starts[0])
        assert len({tuple(start) for start in starts}) == 3
        steps = [env.step(np.zeros(1, np.float32)) for _ in range(200)]
    assert [step[3] for step in steps] == [False] * 199 + [True]
    assert not any(step[2] for step in steps)
