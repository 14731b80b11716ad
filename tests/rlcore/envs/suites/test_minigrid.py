"""MiniGrid: what its cells, directions and missions are as numbers, its episodes, and how they are resumed."""

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


def made(env_id: str, **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, wrapper=wrapper, screen_size=None))


def test_cells_are_what_minigrid_itself_makes_of_them_one_hot() -> None:
    """The oracle is the package's own wrapper, which is slower."""
    from minigrid.wrappers import OneHotPartialObsWrapper

    oracle = OneHotPartialObsWrapper(gymnasium.make("MiniGrid-LockedRoom-v0", disable_env_checker=True))
    rng = np.random.default_rng(0)
    with closing(made("MiniGrid-LockedRoom-v0")) as env:
        (ours, _), (theirs, _) = env.reset(seed=3), oracle.reset(seed=3)
        for _ in range(200):
            assert env.observation_space.contains(ours)
            assert (ours["image"] == theirs["image"]).all() and ours["direction"] == theirs["direction"]
            action = int(rng.integers(7))
            ours, reward, *ends, _ = env.step(action)
            theirs, their_reward, *their_ends, _ = oracle.step(action)
            assert (reward, ends) == (their_reward, their_ends)


def test_a_mission_is_the_words_that_occur_in_it() -> None:
    with closing(made("MiniGrid-GoToDoor-8x8-v0")) as env:
        for seed in range(5):
            obs, _ = env.reset(seed=seed)
            said = {WORDS[number] for number in obs["mission"].nonzero()[0]}
            assert said == set(env.unwrapped.mission.split()) and {"go", "to", "the", "door"} <= said
        env.unwrapped.mission = "go to the teapot"
        obs, *_ = env.step(0)
        assert obs["mission"].sum() == 4 and obs["mission"][-1] == 1  # a word that it does not know


def test_no_mission_has_a_word_that_is_not_known() -> None:
    suite = suite_with("MiniGrid-Empty-8x8-v0")
    assert suite is not None
    for env_id in suite.ids()[::3]:
        with closing(made(env_id)) as env:
            assert not env.reset(seed=1)[0]["mission"][-1], (env_id, env.unwrapped.mission)


def test_pixels_are_a_picture() -> None:
    with closing(made("MiniGrid-Empty-8x8-v0", pixels=True)) as env:
        part = spec_of(env).obs["image"]
        assert (part.kind, part.shape, part.dtype) == ("image", (56, 56, 3), "uint8")
        assert env.observation_space.contains(env.reset(seed=0)[0])
    with closing(make(EnvSettings("MiniGrid-Empty-8x8-v0", wrapper={"pixels": True}, frame_stack=2))) as env:
        assert spec_of(env).obs["image"].shape == (64, 64, 3)


def test_its_ids_are_its_own_and_no_plugins() -> None:
    row = list_suite(SUITES["minigrid"])
    assert {"MiniGrid-Empty-8x8-v0", "MiniGrid-MemoryS7-v0", "BabyAI-GoToLocal-v0"} <= set(row.ids)
    assert not row.refused
    assert not any("MiniGrid" in env_id for env_id in SUITES["plugins"].ids())
    with pytest.raises(UserError, match="did you mean 'MiniGrid-Empty-8x8-v0'"):
        made("MiniGrid-Emty-8x8-v0")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UserError, match=r"env.id=MiniGrid-Empty-8x8-v0: .*minigrid.* pip install -e '\.\[minigrid\]'"):
        made("MiniGrid-Empty-8x8-v0")


def test_it_says_nothing_where_a_mission_is_drawn_again(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(made("BabyAI-BossLevel-v0")) as env:
        for seed in range(10):
            env.reset(seed=seed)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("env_id", ["MiniGrid-MemoryS7-v0", "BabyAI-GoToLocal-v0"])
def test_an_episode_is_played_again_bit_for_bit(env_id: str) -> None:
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
