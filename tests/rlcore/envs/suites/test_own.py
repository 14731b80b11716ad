"""`env.wrapper._target_`: environment classes and wrappers of users."""

from __future__ import annotations

import dataclasses
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
from rlcore.envs.card import card_key, environment_card
from rlcore.envs.exact.recording import random_action
from rlcore.envs.make import EnvSettings, adapt_to_evaluation, make
from rlcore.envs.suites.registry import SUITES
from rlcore.envs.suites.suite import is_installed
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import UserError

SOURCE = '''
from subprocess import run
import gymnasium
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Counting(gymnasium.Env):
    """The observation is the number of the step."""

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


def make_counting(end=3) -> gymnasium.Env:
    return Counting(end)


def return_none() -> gymnasium.Env:
    return None


class Doubled(gymnasium.RewardWrapper):
    def __init__(self, env, factor=2.0):
        super().__init__(env)
        self.factor = float(factor)

    def reward(self, reward):
        return self.factor * reward


def ended(env, end=4) -> gymnasium.Env:
    """Wrap an environment so that episodes end after `end` to `end + 2` actions, chosen by its own generator."""
    return Ended(env, end)


class Ended(gymnasium.Wrapper):
    def __init__(self, env, end):
        super().__init__(env)
        self.end, self.left = end, 0

    def reset(self, **kwargs):
        result = self.env.reset(**kwargs)
        self.left = self.end + int(self.np_random.integers(3))
        return result

    def step(self, action):
        self.left -= 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or self.left == 0, truncated, info


class Hiding(gymnasium.Wrapper):
    def __init__(self, env, screen_size=8):
        super().__init__(env)
'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with a plugin of the user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "own_envs")
    (tmp_path / "own_envs.py").write_text(SOURCE.replace("[self.count]", "__import__('numpy').float32([self.count])"))
    yield
    sys.modules.pop("own_envs", None)


def settings(name: str = "Counting", **arguments: Any) -> EnvSettings:
    return EnvSettings("Mine-v0", {"_target_": f"own_envs.{name}"} | arguments)


def test_target_class_gets_other_wrapper_keys() -> None:
    with closing(make(settings(end=2, id="inner", _convert_="all"))) as env:
        assert env.unwrapped.id == "inner"  # pyright: ignore[reportAttributeAccessIssue]
        env.reset(seed=0)
        assert [env.step(0)[2] for _ in range(2)] == [False, True]


def test_target_function_annotated_with_env_is_called() -> None:
    with closing(make(settings("make_counting", end=2))) as env:
        env.reset(seed=0)
        assert [env.step(0)[2] for _ in range(2)] == [False, True]
    assert environment_card(settings("make_counting"))["tier"] == "snapshot"


ANY_SUITE = {
    "classic control": ("CartPole-v1", {}),
    "toy text": ("FrozenLake-v1", {"is_slippery": False}),
    "box2d": ("LunarLander-v3", {"gravity": -8.0}),
    "mujoco": ("InvertedPendulum-v5", {"frame_skip": 3}),
    "atari": ("PongNoFrameskip-v4", {"noop_max": 5}),
    "crafter": ("crafter_reward", {"length": 50, "area": [12, 12]}),
    "dmc": ("cartpole_balance", {"from_pixels": False}),
    "minigrid": ("MiniGrid-Empty-5x5-v0", {"max_steps": 20}),
    "dummy": ("discrete_dummy", {"n_steps": 9}),
    "small": ("crosshair", {"n_steps": 9}),
}


@pytest.fixture(params=ANY_SUITE)
def suite(request: pytest.FixtureRequest) -> str:
    """Name of each installed suite; test_diambra.py tests DIAMBRA."""
    if not is_installed(SUITES[request.param]):
        pytest.skip(f"the extra {SUITES[request.param].extra}")
    return request.param


def test_wrapper_tests_cover_built_in_suites() -> None:
    built_in = {name for name, known in SUITES.items() if type(known).__module__.startswith("rlcore.") and known.ids()}
    assert built_in - set(ANY_SUITE) <= {"diambra", "batched", "plugins"}  # batched environments refuse wrappers


def play(envs: Any, steps: int) -> Iterator[Any]:
    """Time steps of random actions."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield envs.step(np.asarray(random_action(envs.spec, rng))[None])


def play_bytes(envs: Any, steps: int) -> list[bytes]:
    """The bytes of the time steps of random actions."""
    found = [(*now.obs.values(), now.reward, now.terminated, now.is_first) for now in play(envs, steps)]
    return [b"".join(value.tobytes() for value in arrival) for arrival in found]


def test_target_wrapper_applies_to_every_suite(suite: str) -> None:
    env_id, others = ANY_SUITE[suite]
    plain = EnvSettings(env_id, others, action_repeat=2, screen_size=32, grayscale=True)
    wrapped = dataclasses.replace(plain, wrapper={**others, "_target_": "own_envs.Doubled", "factor": 4.0})
    envs, bare = (make_vector_env(which, num_envs=1, seed=1) for which in (wrapped, plain))
    with closing(envs), closing(bare):
        assert bare.spec == envs.spec
        for left, right in ((bare.reset(), envs.reset()), *zip(*(play(one, 12) for one in (bare, envs)), strict=True)):
            assert all(np.array_equal(left.obs[key], right.obs[key]) for key in bare.spec.obs)
            np.testing.assert_array_equal(4 * left.reward, right.reward)  # exact: a power of two


TIERS = {"box2d": "replay", "mujoco": "replay", "dmc": "replay", "minigrid": "replay"}


def test_wrapped_environment_resumes_exactly_in_every_suite(suite: str) -> None:
    env_id, others = ANY_SUITE[suite]
    wrapped = EnvSettings(env_id, {**others, "_target_": "own_envs.ended"}, screen_size=32)

    def vector() -> Any:
        return make_vector_env(wrapped, num_envs=1, seed=1, tier=TIERS.get(suite, "snapshot"))

    with closing(vector()) as envs, closing(vector()) as other:
        envs.reset()
        play_bytes(envs, 6)  # within an episode, after draws from the generator
        other.load_state_dict(envs.state_dict())
        assert play_bytes(other, 20) == play_bytes(envs, 20)
        assert envs.pop_episodes()


@pytest.mark.parametrize("suite", ["classic control", "minigrid"], indirect=True)
def test_environment_card_of_wrapper_keeps_suite_tier(suite: str, tmp_path: Path) -> None:
    wrapped = EnvSettings(ANY_SUITE[suite][0], {"_target_": "own_envs.ended", "end": 30}, screen_size=32)
    card = environment_card(wrapped)
    assert (card["id"], card["tier"]) == (wrapped.id, TIERS.get(suite, "snapshot"))
    assert card["deterministic"] and "Ended" in card["layers"]
    assert {package.lower() for package in SUITES[suite].packages} <= set(card["packages"])
    before = card_key(wrapped)
    (tmp_path / "own_envs.py").write_text(SOURCE + "# changed")
    assert card_key(wrapped) not in (None, before)


def test_make_refuses_wrapper_argument_named_like_setting() -> None:
    pytest.importorskip("ale_py")
    hides = "own_envs.Hiding: its argument screen_size has the same name as an .* suite atari that env.screen_size sets"
    with pytest.raises(UserError, match=hides):
        make(EnvSettings("PongNoFrameskip-v4", {"_target_": "own_envs.Hiding"}))


def test_adapt_to_evaluation_keeps_wrapper_arguments() -> None:
    pytest.importorskip("ale_py")
    wrapper = {"_target_": "own_envs.Doubled", "factor": 3.0, "terminal_on_life_loss": True}
    config = adapt_to_evaluation(EnvConfig(id="PongNoFrameskip-v4", wrapper=wrapper))
    assert config.wrapper == {**wrapper, "terminal_on_life_loss": False}


def test_target_class_supports_time_limit_and_rendering() -> None:
    with closing(make(EnvSettings("Mine-v0", {"_target_": "own_envs.Wrapped"}, max_episode_steps=4))) as env:
        env.reset(seed=0)
        assert [env.step(i % 2)[3] for i in range(4)] == [False] * 3 + [True]
    with pytest.raises(UserError, match="unexpected keyword argument 'render_mode'"):
        make(settings(), render_mode="rgb_array")  # it cannot render


def test_environment_card_of_target_class_follows_source(tmp_path: Path) -> None:
    card = environment_card(settings())
    assert (card["id"], card["tier"], card["tested"]["longest_episode"]) == ("Counting", "snapshot", 3)
    before = card_key(settings())
    (tmp_path / "own_envs.py").write_text(SOURCE)
    assert card_key(settings()) not in (None, before)


def test_target_class_steps_in_subprocess() -> None:
    config = EnvConfig(id="Mine-v0", sync_env=False, wrapper={"_target_": "own_envs.Counting", "end": 5})
    with closing(make_vector_env(config, num_envs=2, seed=0)) as envs:
        envs.reset()
        assert envs.step(np.zeros((2,), np.int64)).obs["state"].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Another", {}, "own_envs has no Another"),
        ("helper", {"command": "ls"}, "must be a subclass of gymnasium.Env"),
        ("run", {"args": ["touch", "called"]}, "must be a subclass of gymnasium.Env"),
        ("gymnasium", {}, "must be a subclass of gymnasium.Env"),
        ("return_none", {}, "it returned a NoneType, but must return a gymnasium.Env"),
        ("Doubled", {"end": 1}, "env.wrapper.end=1: FrozenLake-v1 has no argument 'end'"),
        (
            "Doubled",
            {"factor": None},
            "own_envs.Doubled with env.wrapper.factor=None: cannot wrap FrozenLake-v1",
        ),
        ("ended", {}, "env.id=Mine-v0: no such environment"),
        ("Counting", {"end": 0}, r"with env.wrapper.end=0: cannot be created \(ValueError: end 0 is too small\)"),
        ("Counting", {"last": 2}, r"with env.wrapper.last=2: .* unexpected keyword argument 'last'"),
    ],
)
def test_make_refuses_invalid_target_without_call(
    tmp_path: Path, name: str, arguments: dict[str, Any], message: str
) -> None:
    env_id = "FrozenLake-v1" if name == "Doubled" else "Mine-v0"
    with pytest.raises(UserError, match=message):
        make(dataclasses.replace(settings(name, **arguments), id=env_id))
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("own_envs.Counting", r"add plugins=\[own_envs\] to the command, or set SHEPHERD_PLUGINS=own_envs"),
        ("folder.tasks.Arm", r"add plugins=\[folder\.tasks\] to the command"),  # folder has no __init__.py
        (
            "absent.envs.Arm",
            "module absent was not found: run the command in the folder that contains it, or add that folder to "
            r"PYTHONPATH, and add plugins=\[absent\] to the command",
        ),
        (
            "sheeprl.envs.mine.MyEnv",
            "copy your file sheeprl/envs/mine.py as mine.py into the folder in which you run the command, "
            r"set env.wrapper._target_=mine.MyEnv, and add plugins=\[mine\] to the command",
        ),
        ("sheeprl.envs.json.MyEnv", r"sheeprl/envs/json.py as my_json.py .* set env.wrapper._target_=my_json.MyEnv, "),
    ],
)
def test_compose_refuses_target_outside_plugins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, advice: str
) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "")
    for file in ("sheeprl/envs/mine.py", "folder/tasks.py"):  # for a user who works in a copy of SheepRL
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("raise AssertionError('imported')\n")
    monkeypatch.chdir(tmp_path)
    advice = (
        rf"^env.wrapper._target_={target}: classes are imported only from modules that you name as plugins; .*{advice}"
    )
    with pytest.raises(UserError, match=advice):
        compose(["exp=ppo", "env.id=Mine", f"env.wrapper._target_={target}"])
    with pytest.raises(UserError, match=advice):  # for an existing run
        make(EnvSettings("Mine", {"_target_": target}))
    assert "own_envs" not in sys.modules


def test_compose_suggests_nearest_target_of_sheeprl() -> None:
    with pytest.raises(UserError, match="; did you mean 'sheeprl.envs.dmc.DMCWrapper'?"):
        compose(["exp=ppo", "env=dmc", "env.wrapper._target_=sheeprl.envs.dmc.DMCWraper"])


def test_compose_keeps_id_argument_of_target() -> None:
    typed = ["env.id=Mine-v0", "env.wrapper._target_=own_envs.Counting", "env.wrapper.id=Inner", "env.wrapper.end=4"]
    config, tree = compose(["exp=ppo", "plugins=[own_envs]", *typed])
    assert config.env.wrapper == tree["env"]["wrapper"] == {"_target_": "own_envs.Counting", "id": "Inner", "end": 4}
    assert config.plugins == ("own_envs",)


def test_compose_merges_inner_environment_of_wrapper() -> None:
    around = ["env.wrapper._target_=own_envs.Doubled", "env.wrapper.factor=2"]
    inner = "{_target_: gymnasium.make, id: PongNoFrameskip-v4, render_mode: rgb_array, mode: 1}"
    game = f"{{_target_: gymnasium.wrappers.AtariPreprocessing, noop_max: 7, env: {inner}}}"
    config, _ = compose(["exp=ppo", "env=gym", "env.id=PongNoFrameskip-v4", *around, f"+env.wrapper.env={game}"])
    assert config.env.wrapper == {"_target_": "own_envs.Doubled", "factor": 2, "noop_max": 7, "mode": 1}
    task = "{_target_: sheeprl.envs.dmc.DMCWrapper, domain_name: cheetah, task_name: run, from_pixels: false}"
    config, _ = compose(["exp=ppo", "env=gym", "env.id=cheetah_run", *around, f"+env.wrapper.env={task}"])
    assert (config.env.id, config.env.wrapper["from_pixels"]) == ("cheetah_run", False)
