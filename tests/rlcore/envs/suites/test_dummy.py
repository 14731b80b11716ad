"""SheepRL's three dummy environments: spaces, episodes, and their names in SheepRL's config files."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import UserError
from tests.soaking import heavy

pytestmark = heavy

# SheepRL 0.8.4, sheeprl/envs/dummy.py: action space, and actions per episode (n_steps + 1)
FACTS = {
    "continuous_dummy": ("Box", (2,), (), 129),
    "discrete_dummy": ("Discrete", (), (2,), 5),
    "multidiscrete_dummy": ("MultiDiscrete", (2,), (2, 2), 129),
}


def make_env(env_id: str, **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, wrapper=wrapper))


@pytest.mark.parametrize("env_id", FACTS)
def test_dummy_spaces_and_episodes_match_sheeprl(env_id: str) -> None:
    space, shape, nvec, length = FACTS[env_id]
    with closing(make_env(env_id)) as env:
        spec = spec_of(env)
        assert (spec.id, spec.action.space, spec.action.shape, spec.action.nvec) == (env_id, space, shape, nvec)
        assert {key: (part.shape, part.dtype) for key, part in spec.obs.items()} == {
            "rgb": ((3, 64, 64), "uint8"),
            "state": ((10,), "float32"),
        }
        obs, _ = env.reset(seed=0)
        env.action_space.seed(0)
        for count in range(1, length + 1):
            assert (obs["rgb"] == count - 1).all() and (obs["state"] == count - 1).all()
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert (reward, terminated, truncated) == (0.0, count == length, False)


def test_dummy_accepts_target_and_arguments_of_sheeprl() -> None:
    target = {"_target_": "sheeprl.utils.env.get_dummy_env", "id": "multidiscrete_dummy"}
    with closing(make_env("multidiscrete_dummy", **target, action_dims=[3, 4, 2], vector_shape=[2], n_steps=1)) as env:
        assert spec_of(env).action.nvec == (3, 4, 2) and spec_of(env).obs["state"].shape == (2,)
        env.reset(seed=0)
        assert [env.step(np.array([2, 3, 1]))[2] for _ in range(2)] == [False, True]
    with closing(make_env("discrete_dummy", dict_obs_space=False)) as env:
        assert list(spec_of(env).obs) == ["state"]
    with pytest.raises(UserError, match="env.id=discrete_dummy with env.wrapper.n_step=3: .* argument 'n_step'"):
        make_env("discrete_dummy", n_step=3)


@pytest.mark.parametrize("env_id", FACTS)
def test_dummy_environments_have_tier_snapshot(env_id: str) -> None:
    card = environment_card(EnvSettings(env_id, wrapper={"image_size": [3, 4, 4]}))
    assert (card["tier"], card["deterministic"]) == ("snapshot", True)
