"""MiniGrid: encoding of cells, directions and missions, episodes, and resume."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlcore.config.groups import EnvConfig
from rlcore.envs.card import environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.minigrid import WORDS
from rlcore.envs.suites.registry import SUITES, list_suite, suite_with
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import UserError
from tests.soaking import heavy

pytestmark = heavy

minigrid = pytest.importorskip("minigrid")


def make_env(env_id: str, **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, wrapper=wrapper, screen_size=None))


def test_image_matches_one_hot_wrapper_of_minigrid() -> None:
    """The oracle is the package's own wrapper, which is slower."""
    from minigrid.wrappers import OneHotPartialObsWrapper

    oracle = OneHotPartialObsWrapper(gymnasium.make("MiniGrid-LockedRoom-v0", disable_env_checker=True))
    rng = np.random.default_rng(0)
    with closing(make_env("MiniGrid-LockedRoom-v0")) as env:
        (ours, _), (theirs, _) = env.reset(seed=3), oracle.reset(seed=3)
        for _ in range(200):
            assert env.observation_space.contains(ours)
            assert (ours["image"] == theirs["image"]).all() and ours["direction"] == theirs["direction"]
            action = int(rng.integers(7))
            ours, reward, *ends, _ = env.step(action)
            theirs, their_reward, *their_ends, _ = oracle.step(action)
            assert (reward, ends) == (their_reward, their_ends)


def test_mission_encodes_set_of_words() -> None:
    with closing(make_env("MiniGrid-GoToDoor-8x8-v0")) as env:
        for seed in range(5):
            obs, _ = env.reset(seed=seed)
            words = {WORDS[number] for number in obs["mission"].nonzero()[0]}
            assert words == set(env.unwrapped.mission.split()) and {"go", "to", "the", "door"} <= words
        env.unwrapped.mission = "go to the teapot"
        obs, *_ = env.step(0)
        assert obs["mission"].sum() == 4 and obs["mission"][-1] == 1  # an unknown word


def test_words_cover_missions_of_all_environments() -> None:
    suite = suite_with("MiniGrid-Empty-8x8-v0")
    assert suite is not None
    for env_id in suite.ids()[::3]:
        with closing(make_env(env_id)) as env:
            assert not env.reset(seed=1)[0]["mission"][-1], (env_id, env.unwrapped.mission)


def test_pixels_observation_is_image() -> None:
    with closing(make_env("MiniGrid-Empty-8x8-v0", pixels=True)) as env:
        part = spec_of(env).obs["image"]
        assert (part.kind, part.shape, part.dtype) == ("image", (56, 56, 3), "uint8")
        assert env.observation_space.contains(env.reset(seed=0)[0])
    with closing(make(EnvSettings("MiniGrid-Empty-8x8-v0", wrapper={"pixels": True}, frame_stack=2))) as env:
        assert spec_of(env).obs["image"].shape == (64, 64, 3)


def test_minigrid_ids_belong_to_no_plugin() -> None:
    row = list_suite(SUITES["minigrid"])
    assert {"MiniGrid-Empty-8x8-v0", "MiniGrid-MemoryS7-v0", "BabyAI-GoToLocal-v0"} <= set(row.ids)
    assert not row.refused
    assert not any("MiniGrid" in env_id for env_id in SUITES["plugins"].ids())
    with pytest.raises(UserError, match="did you mean 'MiniGrid-Empty-8x8-v0'"):
        make_env("MiniGrid-Emty-8x8-v0")


def test_make_names_missing_minigrid_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UserError, match=r"env.id=MiniGrid-Empty-8x8-v0: .*minigrid.* pip install -e '\.\[minigrid\]'"):
        make_env("MiniGrid-Empty-8x8-v0")


def test_reset_prints_nothing_when_mission_is_rejected(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(make_env("BabyAI-BossLevel-v0")) as env:
        for seed in range(10):
            env.reset(seed=seed)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("env_id", ["MiniGrid-MemoryS7-v0", "BabyAI-GoToLocal-v0"])
def test_minigrid_resumes_by_replay_bit_for_bit(env_id: str) -> None:
    card = environment_card(EnvSettings(env_id, screen_size=None))
    assert (card["tier"], card["deterministic"], card["fresh_instance"]) == ("replay", True, False)
    config = EnvConfig(env_id, screen_size=None)
    one, other = (make_vector_env(config, num_envs=2, seed=2, tier="replay") for _ in range(2))
    with closing(one), closing(other):
        one.reset()
        rng = np.random.default_rng(0)
        actions = rng.integers(0, 7, (300, 2))
        for action in actions[:100]:
            one.step(action)
        other.load_state_dict(one.state_dict())
        for action in actions[100:]:
            left, right = one.step(action), other.step(action)
            assert all((left.obs[key] == right.obs[key]).all() for key in left.obs)
            assert (left.reward == right.reward).all() and (left.is_first == right.is_first).all()
