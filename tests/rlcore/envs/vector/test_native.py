"""One vectorised environment plays the episodes of single ones, bit for bit, and resumes within them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlcore.config.groups import ActionsAsObservation, EnvConfig
from rlcore.envs.vector.episodic import EpisodicVectorEnv
from rlcore.envs.vector.make import make_vector_env
from rlcore.envs.vector.native import NativeVectorEnv
from rlcore.errors import EnvironmentFault, UserError
from rlcore.store.checkpoint import nested_state

B = 5


def envs(vectorization: str = "native", tier: str = "snapshot", **settings: Any) -> EpisodicVectorEnv:
    config = EnvConfig(**{"id": "CartPole-v1", "vectorization": vectorization} | settings)
    return make_vector_env(config, num_envs=B, seed=3, tier=tier)


def played(vector: EpisodicVectorEnv, steps: int, begin: bool = True, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    found = [vector.reset()] if begin else []
    found += [vector.step(rng.integers(0, 2, B)) for _ in range(steps)]
    # + 0.0: with `sutton_barto_reward` the vectorised code says -0.0 where the single environment says 0.0
    rows = [[*a.obs.values(), a.reward + 0.0, a.terminated, a.truncated, a.is_first] for a in found]
    return [b"|".join(part.tobytes() for part in row) for row in rows]


@pytest.mark.parametrize("tier", ["snapshot", "replay"])
@pytest.mark.parametrize(
    "settings", [{}, {"max_episode_steps": 9}, {"wrapper": {"sutton_barto_reward": True, "max_episode_steps": 20}}]
)
def test_the_episodes_are_those_of_single_environments(tier: str, settings: dict[str, Any]):
    native, single = (envs(kind, tier, **settings) for kind in ("native", "single"))
    assert isinstance(native, NativeVectorEnv) and not isinstance(single, NativeVectorEnv)
    assert native.spec == single.spec
    assert played(native, 120) == played(single, 120)
    episodes = native.pop_episodes()
    assert episodes == single.pop_episodes() and len(episodes) > 10


@pytest.mark.parametrize("steps", [0, 7, 40])
def test_it_goes_on_from_a_state_that_went_through_a_file(steps: int):
    one, other = envs(), envs()
    played(one, steps)
    played(other, 11, seed=5)  # it has been used: nothing of that may count
    shape, tensors = nested_state.encode(one.state_dict())
    other.load_state_dict(nested_state.decode(shape, tensors))
    assert played(one, 60, begin=False, seed=1) == played(other, 60, begin=False, seed=1)
    assert one.pop_episodes()[-1] == other.pop_episodes()[-1]


def test_rows_are_written_where_the_caller_wants_them():
    own, given = envs(), envs()
    first, into = own.reset(), given.reset()
    for action in np.random.default_rng(0).integers(0, 2, (50, B)):
        first, found = own.step(action), given.step(action, into)
        assert found is into
        for a, b in zip([*first.obs.values(), first.reward], [*into.obs.values(), into.reward], strict=True):
            assert np.array_equal(a, b)
        assert all(np.array_equal(getattr(first, k), getattr(into, k)) for k in ("terminated", "truncated", "is_first"))


def test_an_action_that_is_none_is_refused():
    vector = envs()
    vector.reset()
    with pytest.raises(EnvironmentFault, match="the environments' step raised AssertionError"):
        vector.step(np.full(B, 2))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"id": "Acrobot-v1"}, "Acrobot-v1 has no vectorised code .* CartPole-v0, CartPole-v1 have"),
        ({"id": "phys2d/CartPole-v1"}, "suite is not there yet"),
        ({"action_repeat": 2}, "not together with env.action_repeat"),
        ({"mask_velocities": True}, "not together with env.mask_velocities"),
        ({"reward_as_observation": True}, "not together with env.reward_as_observation"),
        ({"actions_as_observation": ActionsAsObservation(num_stack=2)}, "not together with env.actions_as_observation"),
        ({"sync_env": False}, "set env.sync_env=true"),
        ({"wrapper": {"_target_": "somebody.Own"}}, "has no vectorised code"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        envs(**settings)


def test_the_choice_is_part_of_what_is_learned():
    from rlcore.store.run_config import learning_half

    one, other = (learning_half(EnvConfig(id="CartPole-v1", vectorization=kind)) for kind in ("native", "single"))
    assert json.dumps(one) != json.dumps(other)
