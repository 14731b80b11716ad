"""`env.wrapper._target_`: environment classes of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.config.compose import compose
from rlcore import plugins
from rlcore.envs.card import card_key, environment_card
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import UserError

SOURCE = '''
from subprocess import run
import gymnasium
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Counting(gymnasium.Env):
    """Its observation is the number of the step."""

    def __init__(self, end=3, id=""):
        if end < 1:
            raise ValueError(f"end {end} is too small")
        self.end, self.id = end, id
        self.observation_space = spaces.Box(0, 100, (1,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return [self.count], {}

    def step(self, action):
        self.count += 1
        return [self.count], 1.0, self.count == self.end, False, {}


class Wrapped(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(CartPoleEnv())


def helper(command):
    open("called", "w")


def made(end=3) -> gymnasium.Env:
    return Counting(end)


def nothing() -> gymnasium.Env:
    return None


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward
'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a module of the user's own, which is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "own_envs")
    (tmp_path / "own_envs.py").write_text(SOURCE.replace("[self.count]", "__import__('numpy').float32([self.count])"))
    yield
    sys.modules.pop("own_envs", None)


def settings(name: str = "Counting", **arguments: Any) -> EnvSettings:
    return EnvSettings("Mine-v0", {"_target_": f"own_envs.{name}"} | arguments)


def test_the_keys_beside_the_class_are_its_arguments() -> None:
    with closing(make(settings(end=2, id="inner", _convert_="all"))) as env:
        assert env.unwrapped.id == "inner"  # pyright: ignore[reportAttributeAccessIssue]
        env.reset(seed=0)
        assert [env.step(0)[2] for _ in range(2)] == [False, True]


def test_a_function_that_says_that_it_makes_an_environment_is_called() -> None:
    with closing(make(settings("made", end=2))) as env:
        env.reset(seed=0)
        assert [env.step(0)[2] for _ in range(2)] == [False, True]
    assert environment_card(settings("made"), seed=1)["tier"] == "snapshot"


def test_a_wrapper_gets_the_environment_that_it_is_to_wrap() -> None:
    with closing(make(EnvSettings("CartPole-v1", {"_target_": "own_envs.Doubled", "factor": 3.0}))) as env:
        env.reset(seed=0)
        assert env.step(0)[1] == 3.0
        assert env.unwrapped.spec is not None and env.unwrapped.spec.id == "CartPole-v1"


def test_wrappers_limits_and_pictures_are_as_with_any_environment() -> None:
    with closing(make(EnvSettings("Mine-v0", {"_target_": "own_envs.Wrapped"}, max_episode_steps=4))) as env:
        env.reset(seed=0)
        assert [env.step(i % 2)[3] for i in range(4)] == [False] * 3 + [True]
    with pytest.raises(UserError, match="unexpected keyword argument 'render_mode'"):
        make(settings(), render_mode="rgb_array")  # it has no pictures; who asks for a film is told so


def test_its_card_says_how_it_resumes_and_changes_with_its_source(tmp_path: Path) -> None:
    card = environment_card(settings(), seed=1)
    assert (card["id"], card["tier"], card["tested"]["longest_episode"]) == ("Counting", "snapshot", 3)
    before = card_key(settings(), seed=1)
    (tmp_path / "own_envs.py").write_text(SOURCE)
    assert card_key(settings(), seed=1) not in (None, before)


def test_it_steps_in_a_process_of_its_own() -> None:
    from rlcore.config.groups import EnvConfig

    config = EnvConfig(id="Mine-v0", sync_env=False, wrapper={"_target_": "own_envs.Counting", "end": 5})
    with closing(make_vector_env(config, num_envs=2, seed=0)) as envs:
        envs.reset()
        assert envs.step(np.zeros((2,), np.int64)).obs["state"].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("Another", {}, "own_envs has no Another"),
        ("helper", {"command": "ls"}, "no class of gymnasium.Env"),
        ("run", {"args": ["touch", "called"]}, "no class of gymnasium.Env"),
        ("gymnasium", {}, "no class of gymnasium.Env"),
        ("nothing", {}, "it gave a NoneType, no gymnasium.Env"),
        ("Doubled", {}, "cannot be made"),  # Mine-v0 is nobody's
        ("Counting", {"end": 0}, r"with env.wrapper.end=0: cannot be made \(ValueError: end 0 is too small\)"),
        ("Counting", {"last": 2}, r"with env.wrapper.last=2: .* unexpected keyword argument 'last'"),
    ],
)
def test_what_is_no_environment_is_a_sentence_and_never_called(
    tmp_path: Path, name: str, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=rf"env.wrapper._target_=own_envs.{name}.*{says}"):
        make(settings(name, **arguments))
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("target", ["own_envs.Counting", "sheeprl.envs.mine.MyEnv"])
def test_a_class_of_no_plugin_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "")
    package = target.partition(".")[0]
    advice = rf"_target_={target}: nothing is imported .* plugins=\[{package}\] or SHEPHERD_PLUGINS={package}"
    if package == "sheeprl":  # which is not installed here
        advice = rf"_target_={target}: nothing is imported .* nor is sheeprl here; take the key out"
    with pytest.raises(UserError, match=advice):
        compose(["exp=ppo", "env.id=Mine", f"env.wrapper._target_={target}"])
    with pytest.raises(UserError, match=advice):  # of a run that says so
        make(EnvSettings("Mine", {"_target_": target}))
    assert "own_envs" not in sys.modules


def test_a_sheeprl_users_file_composes_with_its_id_among_the_arguments() -> None:
    typed = ["env.id=Mine-v0", "env.wrapper._target_=own_envs.Counting", "env.wrapper.id=Inner", "env.wrapper.end=4"]
    config, tree = compose(["exp=ppo", "plugins=[own_envs]", *typed])
    assert config.env.wrapper == tree["env"]["wrapper"] == {"_target_": "own_envs.Counting", "id": "Inner", "end": 4}
    assert config.plugins == ("own_envs",)
