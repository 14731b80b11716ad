"""A suite in a plugin file: listed, created, vectorized, saved and evaluated like a built-in one."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config.compose import compose
from rlcore import plugins
from rlcore.config.groups import EnvConfig
from rlcore.envs.card import card_key, environment_card, package_versions
from rlcore.envs.make import EnvSettings, adapt_to_evaluation, make
from rlcore.envs.suites import registry
from rlcore.envs.suites.gym import GYMNASIUM, GymnasiumSuite
from rlcore.envs.suites.ids import known_id
from rlcore.envs.suites.registry import SUITES, list_suite, register
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.native import NativeVectorEnv
from rlcore.errors import UserError
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.run_config import build_config
from rlcore.spec import EnvSpec
from tests.runs import values

SOURCE = '''
import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.suites.registry import register
from rlcore.envs.suites.suite import Suite


class Machine:
    """An engine whose state only the suite can read."""

    def __init__(self):
        self.lives, self.score = 2, 0.0


class Game(gymnasium.Env):
    """Each third action costs a life; with `life_ends`, that ends the episode."""

    def __init__(self, life_ends=True, render_mode=None):
        self.life_ends, self.machine, self.count = life_ends, Machine(), 0
        self.observation_space = spaces.Box(-1e6, 1e6, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.machine.lives, self.machine.score, self.count = 2, float(self.np_random.random()), 0
        return np.array([self.machine.score]), {}

    def step(self, action):
        self.count += 1
        self.machine.score += float(self.np_random.random()) + action
        lost = self.count % 3 == 0
        self.machine.lives -= lost
        over = self.machine.lives == 0 or (lost and self.life_ends)
        return np.array([self.machine.score]), 1.0, over, False, {}


class Lanes:
    """All machines as arrays."""

    def __init__(self, num_envs):
        self.envs = [Game() for _ in range(num_envs)]

    def step(self, action):
        obs, reward, over, _, _ = zip(*(env.step(int(a)) for env, a in zip(self.envs, action)))
        return np.stack(obs), np.array(reward), np.array(over)

    def put(self, index, env):
        move(env.unwrapped, self.envs[index])

    def take(self, index, env):
        move(self.envs[index], env.unwrapped)

    def close(self):
        pass


def move(source, target):
    target.life_ends, target.count = source.life_ends, source.count
    target.np_random.bit_generator.state = source.np_random.bit_generator.state
    target.machine.lives, target.machine.score = source.machine.lives, source.machine.score


class Arcade(Suite):
    name, extra, note, packages = "arcade", "EXTRA", "made for a test", ("numpy",)
    requires, engines = "REQUIRES", ("Game.machine",)
    targets = ("sheeprl.envs.arcade.ArcadeWrapper",)

    def ids(self):
        return ("arcade_game",)

    def make(self, env_id, arguments, render_mode):
        import REQUIRES
        return Game(**arguments)

    def source(self, env_id):
        return Game

    def vector(self, env_id, arguments):
        return None if arguments else Lanes

    def capture(self, env):
        return {"lives": int(env.machine.lives), "score": np.array(env.machine.score)}

    def restore(self, env, state):
        env.machine.lives, env.machine.score = state["lives"], float(state["score"])

    def evaluation(self, env_id, wrapper):
        return {**wrapper, "life_ends": False}


register(Arcade())
'''


def plugin(folder: Path, requires: str = "json", extra: str = "", engines: bool = True) -> None:
    source = SOURCE.replace("REQUIRES", requires).replace("EXTRA", extra)
    (folder / "arcade_suite.py").write_text(source if engines else source.replace('("Game.machine",)', "()"))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with the plugin; the registry is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "arcade_suite")
    before = dict(SUITES)
    plugin(tmp_path)
    yield
    SUITES.clear()
    SUITES.update(before)
    sys.modules.pop("arcade_suite", None)


def play_bytes(vector: Any, steps: int, begin: bool = True, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    found = [vector.reset()] if begin else []
    found += [vector.step(rng.integers(0, 2, vector.num_envs)) for _ in range(steps)]
    return [b"|".join(x.tobytes() for x in (*a.obs.values(), a.reward, a.terminated, a.is_first)) for a in found]


def test_plugin_suite_is_found_and_listed() -> None:
    assert known_id("arcade_game") == known_id("arcade_suite:arcade_game") == "arcade_game"
    row = list_suite(SUITES["arcade"])
    assert (row.ids, row.installed, row.refused) == (("arcade_game",), True, {})
    target = {"_target_": "sheeprl.envs.arcade.ArcadeWrapper", "id": "arcade_game", "life_ends": False}
    with closing(make(EnvSettings("arcade_game", target))) as env:
        assert env.unwrapped.life_ends is False  # pyright: ignore[reportAttributeAccessIssue]
    assert "numpy" in package_versions("arcade_game")
    assert card_key(EnvSettings("arcade_game")) is not None


def test_plugin_suite_accepts_target_of_sheeprl() -> None:
    typed = ["exp=ppo", "env.id=arcade_game", "+env.wrapper._target_=sheeprl.envs.arcade.ArcadeWrapper"]
    config, _ = compose([*typed, "+env.wrapper.id=${env.id}", "+env.wrapper.life_ends=false"])
    assert config.env.wrapper == {"life_ends": False}
    with pytest.raises(UserError, match="env.wrapper.id=another: differs from env.id=arcade_game"):
        compose([*typed, "+env.wrapper.id=another"])


def test_plugin_suite_names_missing_extra(tmp_path: Path) -> None:
    plugin(tmp_path, requires="no_such_engine", extra="arcade")
    with pytest.raises(UserError, match=r"env.id=arcade_game: the package for arcade .*pip install -e '\.\[arcade\]'"):
        make(EnvSettings("arcade_game"))
    row = list_suite(SUITES["arcade"])
    assert (row.ids, row.extra, row.installed) == (("arcade_game",), "arcade", False)


def test_plugin_suite_suggests_nearest_argument(tmp_path: Path) -> None:
    plugin(tmp_path)
    with pytest.raises(UserError, match=r"env.wrapper.life_end=1: .* did you mean 'life_ends'"):
        make(EnvSettings("arcade_game", {"life_end": 1}))


@pytest.mark.parametrize(("engines", "tier"), [(True, "snapshot"), (False, "replay")])
def test_plugin_suite_capture_defines_tier(tmp_path: Path, engines: bool, tier: str) -> None:
    plugin(tmp_path, engines=engines)
    card = environment_card(EnvSettings("arcade_game"))
    assert card["tier"] == tier
    assert engines or "Game.machine cannot be saved" in card["tier_reason"]


@pytest.mark.parametrize("kinds", [("single", "single"), ("auto", "single"), ("single", "auto"), ("auto", "auto")])
def test_plugin_suite_resumes_in_every_vectorization(kinds: tuple[str, str]) -> None:
    one, other, whole = (
        make_vector_env(EnvConfig("arcade_game", vectorization=kind), num_envs=9, seed=2) for kind in (*kinds, "single")
    )
    assert isinstance(one, NativeVectorEnv) == (kinds[0] == "auto")
    assert play_bytes(one, 7) == play_bytes(whole, 7)
    play_bytes(other, 4, seed=8)
    other.load_state_dict(one.state_dict())
    assert play_bytes(one, 20, False, 1) == play_bytes(other, 20, False, 1) == play_bytes(whole, 20, False, 1)


def test_plugin_suite_resumes_in_subprocess() -> None:
    config = EnvConfig("arcade_game", sync_env=False)
    one, other = (make_vector_env(config, num_envs=2, seed=2) for _ in range(2))
    with closing(one), closing(other):
        play_bytes(one, 7)
        other.load_state_dict(one.state_dict())
        assert play_bytes(one, 9, False, 1) == play_bytes(other, 9, False, 1)


def test_adapt_to_evaluation_changes_only_evaluation() -> None:
    config = EnvConfig("arcade_game")
    assert adapt_to_evaluation(config) == dataclasses.replace(config, wrapper={"life_ends": False})
    run = dataclasses.replace(build_config(values("CartPole-v1", 64)), env=config)
    card = environment_card(config)
    result = evaluate_agent(RandomAgent(EnvSpec.from_json(card["spec"])), run, card, 4, greedy=False)
    assert result["mean_length"] == 6.0  # two lives of three actions; an episode of training ends after three
    assert card["tested"]["longest_episode"] == 3


def test_register_refuses_duplicate_suite_name() -> None:
    known_id("arcade_game")
    with pytest.raises(UserError, match="'arcade' .*another suite already has this name; choose another"):
        register(GymnasiumSuite("arcade", "somewhere."))
    register(SUITES["arcade"])


def test_built_in_suites_have_presets() -> None:
    presets = {"classic control": "gym"}
    presets |= {
        name: name
        for name in ("atari", "batched", "box2d", "crafter", "mujoco", "diambra", "dmc", "dummy", "minigrid", "small")
    }
    for name, preset in presets.items():
        config, _ = compose([f"env={preset}", "exp=ppo", "algo.mlp_keys.encoder=[state]"])
        assert registry.suite_with(config.env.id) is SUITES[name]
    assert {suite.name for suite in GYMNASIUM} | {*presets, "plugins"} == {
        name for name in SUITES if not re.match("arcade", name)
    }
