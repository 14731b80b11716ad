"""Environments from the config: ids, wrappers, observation keys, and error messages."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlcore import plugins
from rlcore.config.groups import ActionsAsObservationConfig, EnvConfig
from rlcore.envs.card import readable_space
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import action_spec, obs_bounds, spec_of
from rlcore.envs.suites.gym import entry
from rlcore.envs.suites.ids import known_id
from rlcore.envs.suites.registry import SUITES, list_suite
from rlcore.envs.wrappers import NormalizeAction, layers
from rlcore.errors import UserError
from rlcore.spec import EnvSpec
from tests.rlcore.envs import probe_envs


def make_env(env_id: str, **options):
    return make(EnvSettings(env_id, **options))


def spaces_env(**kwargs):
    return make_env("Probe/Spaces-v0", wrapper=kwargs)


# Ids and packages


@pytest.mark.parametrize(
    ("env_id", "parts"),
    [
        ("CartPol-v1", ("CartPol-v1", "did you mean 'CartPole-v1'")),
        ("LunarLander-v2", ("use LunarLander-v3",)),
        ("Hopper-v3", ("use Hopper-v5",)),
        ("Taxi-v3", ("use Taxi-v4",)),
        ("CartPole", ("use CartPole-v1",)),
        ("MsPacman-v4", ("did you mean 'ALE/MsPacman-v5'",)),
        ("MiniGrid-Empt-8x8-v0", ("did you mean 'MiniGrid-Empty-8x8-v0'",)),
        ("phys2d/CartPole-v1", ("not supported yet",)),
        ("os:CartPole-v1", ("plugins=[os]", "env.id=CartPole-v1")),
    ],
)
def test_make_suggests_ids_for_unknown_id(env_id, parts):
    with pytest.raises(UserError) as caught:
        make_env(env_id)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in (f"env.id={env_id}", *parts))


def test_make_never_imports_module_of_id(monkeypatch, tmp_path):
    (tmp_path / "evil_probe.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="a config cannot import the module"):
        make_env("evil_probe:Evil-v0")
    assert "evil_probe" not in sys.modules


def test_shepherd_plugins_variable_registers_ids(monkeypatch, tmp_path):
    (tmp_path / "good_probe.py").write_text(
        "import gymnasium\ngymnasium.register('GoodProbe-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHEPHERD_PLUGINS", "good_probe")
    try:
        assert plugins.load() == ["good_probe"]
        assert known_id("good_probe:GoodProbe-v0") == known_id("GoodProbe-v0") == "GoodProbe-v0"
    finally:
        gymnasium.registry.pop("GoodProbe-v0", None)


def test_make_names_missing_plugin(monkeypatch):
    monkeypatch.setenv("SHEPHERD_PLUGINS", "no_such_plugin_here")
    with pytest.raises(UserError, match="plugins=no_such_plugin_here"):
        make_env("Missing-v1")  # plugins are imported only for ids that Gymnasium does not know


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Ant-v5", "mujoco", "mujoco"),
        ("MiniGrid-Empty-8x8-v0", "minigrid", "minigrid"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("PongNoFrameskip-v4", "ale_py", "atari"),
        ("cartpole_balance", "dm_control", "dmc"),
        ("crafter_reward", "crafter", "crafter"),
    ],
)
def test_make_names_extra_of_missing_package(monkeypatch, env_id, module, extra):
    for name in [n for n in sys.modules if n.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for known in [known for known, spec in gymnasium.registry.items() if entry(spec).startswith(f"{module}.")]:
        monkeypatch.delitem(gymnasium.registry, known)  # the package registers them itself
    with pytest.raises(UserError, match=rf"env.id={env_id}: .*pip install -e '\.\[{extra}\]'"):
        make_env(env_id)
    assert not next(list_suite(s) for s in SUITES.values() if s.extra == extra).installed


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_make_quotes_refusal_of_gymnasium():
    pytest.importorskip("mujoco")
    with pytest.raises(UserError, match=r"env.id=Pusher-v4: .*only supported on `mujoco<3`") as refused:
        make_env("Pusher-v4")
    assert "not installed" not in str(refused.value)
    mujoco = list_suite(SUITES["mujoco"])
    assert "Pusher-v4" not in mujoco.ids and "Pusher-v5" in mujoco.ids
    assert "mujoco<3" in mujoco.refused["Pusher-v4"]


def test_make_suggests_nearest_wrapper_argument():
    with pytest.raises(UserError, match=r"env.wrapper.is_slipery=False: .* did you mean 'is_slippery'"):
        make_env("FrozenLake-v1", wrapper={"is_slipery": False})


@pytest.mark.parametrize("wrapper", [{"map_name": "9x9"}, {"desc": 3}])
def test_make_names_invalid_wrapper_value(wrapper):
    ((key, value),) = wrapper.items()
    with pytest.raises(UserError, match=f"env.wrapper.{key}={value}") as caught:
        make_env("FrozenLake-v1", wrapper=wrapper)
    assert "\n" not in str(caught.value)


def test_wrapper_arguments_are_passed_to_environment():
    # Without slipping, each action has one outcome.
    assert len(make_env("FrozenLake-v1", wrapper={"is_slippery": False}).unwrapped.P[0][1]) == 1
    longer = make_env("CartPole-v1", wrapper={"max_episode_steps": 7, "_target_": "gymnasium.make", "id": "ignored"})
    longer.reset(seed=0)
    assert [longer.step(i % 2)[3] for i in range(7)] == [False] * 6 + [True]


def test_make_refuses_target_of_unknown_suite():
    with pytest.raises(UserError, match=r"sheeprl.envs.minedojo.MineDojoWrapper"):
        make_env("CartPole-v1", wrapper={"_target_": "sheeprl.envs.minedojo.MineDojoWrapper"})


def test_env_settings_of_env_config():
    config = EnvConfig(
        id="CartPole-v1",
        action_repeat=2,
        actions_as_observation=ActionsAsObservationConfig(num_stack=3, noop=1, dilation=2),
        max_episode_steps=9,
    )
    assert EnvSettings.of(config) == EnvSettings(
        "CartPole-v1", action_repeat=2, num_stack=3, noop=1, dilation=2, max_episode_steps=9
    )


def test_listed_ids_of_installed_suites_can_step():
    for suite in map(list_suite, SUITES.values()):
        if not suite.installed:
            continue
        left_out = {"CartPole-v0", "CarRacing-v3", *suite.refused}  # `refused` has games without an engine
        for env_id in [i for i in SUITES[suite.name].ids_to_try() if i not in left_out and not i.endswith("-v4")]:
            env = make_env(env_id)
            obs, _ = env.reset(seed=1)
            assert set(obs) == set(spec_of(env).obs), env_id
            env.step(env.action_space.sample())
            env.close()


# Observation keys and specs


def test_bare_observation_gets_key_state():
    env = make_env("CartPole-v1")
    assert list(spec_of(env).obs) == ["state"] == list(env.reset(seed=1)[0])


def test_nested_observation_spaces_get_flat_keys():
    nested = spaces.Dict(
        {
            "arm": spaces.Dict({"angle": spaces.Box(0, 1, (2,)), "hand": spaces.Dict({"open": spaces.Discrete(2)})}),
            "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1,))]),
        }
    )
    env = spaces_env(observation=nested)
    keys = ["arm.angle", "arm.hand.open", "pair_0", "pair_1"]
    obs, _ = env.reset(seed=1)
    assert list(spec_of(env).obs) == keys == list(obs)
    assert all(env.observation_space[k].contains(v) for k, v in obs.items())
    assert list(spec_of(make_env("Blackjack-v1")).obs) == ["state_0", "state_1", "state_2"]


def test_make_refuses_duplicate_flat_keys():
    clash = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})
    with pytest.raises(UserError, match=r"'a.b'"):
        spaces_env(observation=clash)


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "n", "start"),
    [
        (spaces.Discrete(4, start=1), (), "int64", 4, 1),
        (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3), "float64", None, 0),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), (3, 8, 8), "uint8", None, 0),
        (spaces.MultiBinary(3), (3,), "int8", None, 0),
        (spaces.MultiDiscrete([2, 5], start=[1, -1]), (2,), "int64", None, 0),
    ],
)
def test_spec_of_converts_observation_spaces(space, shape, dtype, n, start):
    (part,) = spec_of(make_env("Probe/Spaces-v0", wrapper={"observation": space}, screen_size=None)).obs.values()
    assert (part.shape, part.dtype, part.n, part.start) == (shape, dtype, n, start)


@pytest.mark.parametrize(
    ("space", "kind", "shape", "nvec", "start"),
    [
        (spaces.Discrete(3, start=1), "Discrete", (), (3,), (1,)),
        (spaces.MultiDiscrete([3, 2], start=[1, -1]), "MultiDiscrete", (2,), (3, 2), (1, -1)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "MultiDiscrete", (2, 2), (2, 3, 4, 5), (0, 0, 0, 0)),
        (spaces.MultiBinary((2, 2)), "MultiBinary", (2, 2), (2, 2, 2, 2), (0, 0, 0, 0)),
    ],
)
def test_spec_of_converts_discrete_action_spaces(space, kind, shape, nvec, start):
    action = spec_of(spaces_env(action=space)).action
    assert (action.space, action.shape, action.nvec, action.start) == (kind, shape, nvec, start)
    assert action.size == len(nvec) and not action.continuous


def test_spec_of_box_action_survives_json():
    space = spaces.Box(np.array([[-1.0], [-np.inf]]), np.array([[2.0], [np.inf]]), dtype=np.float64)
    spec = spec_of(spaces_env(action=space))
    assert (spec.action.low, spec.action.high) == ((-1.0, -np.inf), (2.0, np.inf))
    assert (spec.action.shape, spec.action.dtype, spec.action.size) == ((2, 1), "float64", 2)
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_spec_of_refuses_unsupported_spaces():
    with pytest.raises(UserError, match="'words' is Text"):
        spec_of(make_env("Probe/Sequence-v0"))
    with pytest.raises(UserError, match="action space"):
        spec_of(spaces_env(action=spaces.Dict({"a": spaces.Text(2)})))
    with pytest.raises(UserError, match="action space"):
        spec_of(spaces_env(action=spaces.Box(0, 9, (2,), np.int64)))


def test_obs_bounds_skip_unbounded_keys():
    bounds = obs_bounds(
        spaces_env(observation=spaces.Dict({"d": spaces.Discrete(3, start=2), "x": spaces.Box(-np.inf, np.inf, (1,))}))
    )
    assert list(bounds) == ["d"]
    assert [int(v) for v in bounds["d"]] == [2, 4]


# Wrappers


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalize_actions_rescales_elements_with_finite_bounds(dtype):
    low, high = np.array([-2, 0, -1, -np.inf, 3], dtype), np.array([2, 10, 1, np.inf, np.inf], dtype)
    env = make_env("Probe/Spaces-v0", wrapper={"action": spaces.Box(low, high, dtype=dtype)}, normalize_actions=True)
    assert env.action_space.low.tolist() == [-1, -1, -1, -np.inf, 3]
    assert env.action_space.high.tolist() == [1, 1, 1, np.inf, np.inf]
    assert env.action_space.dtype == dtype and spec_of(env).action.dtype == np.dtype(dtype).name
    # -2 + (x+1)/2·4, (x+1)/2·10; the other elements are unchanged, to the last bit
    (action,) = (layer for layer in layers(env) if isinstance(layer, NormalizeAction))
    third = dtype(0.1) / dtype(3)
    given = np.array([0.5, -0.5, third, 7.5, 4], dtype)
    np.testing.assert_allclose(action.action(given), [1, 2.5, third, 7.5, 4], rtol=1e-6)
    assert action.action(given)[2] == third
    assert action.action(np.array([1.5, -1.5, 2, 0, 2], dtype)).tolist() == [2, 0, 1, 0, 3]  # clipped
    env.reset(seed=0)
    env.step(given)  # asserts that the action is in the action space


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"screen_size": 100_000},
            r"env.screen_size=100000: image 'camera' of shape \[100000, 100000, 3\] would take 30",
        ),
        (
            {"frame_stack": 1_000_000},
            "env.frame_stack=1000000: a stack of the last 1,000,000 images 'camera' would take 12 GB",
        ),
        (
            {"frame_stack": 2, "frame_stack_dilation": 10**9},
            "env.frame_stack=2 with env.frame_stack_dilation=1000000000: a stack of the last 1,000,000,001 images",
        ),
        (
            {"num_stack": 10**9},
            "env.actions_as_observation.num_stack=1000000000: a stack of 1,000,000,000 past actions",
        ),
        (
            {"num_stack": 10**9, "dilation": 10**9},
            "num_stack=1000000000 with dilation=1000000000: a stack of 1,000,000,000,000,000,000 past actions",
        ),
    ],
)
def test_make_refuses_settings_that_exceed_memory(settings, message, monkeypatch):
    monkeypatch.setattr("rlcore.envs.spaces.memory", lambda: 40 * 10**9)
    with pytest.raises(UserError, match=message) as refused:
        make_env("Probe/Camera-v0", **settings)
    assert "\n" not in str(refused.value) and "but 40 GB of memory are free" in str(refused.value)


def test_make_refuses_observation_that_exceeds_memory(monkeypatch):
    monkeypatch.setattr("rlcore.envs.spaces.memory", lambda: 10**9)
    large = spaces.Box(0, 255, (100, 1000, 1000), np.uint8)
    with pytest.raises(UserError, match=r"env.id=Probe/Spaces-v0: an observation of shape \[100, 1000, 1000\]"):
        spaces_env(observation=spaces.Dict({"a": spaces.Tuple((large,))}))


def test_make_drops_empty_observation_parts():
    empty = spaces.Box(0, 1, (3, 0))
    env = spaces_env(observation=spaces.Dict({"state": spaces.Box(-1, 1, (2,)), "empty": empty, "none": spaces.Dict()}))
    env.reset(seed=0)
    assert list(spec_of(env).obs) == ["state"] and list(env.step(0)[0]) == ["state"]
    assert list(obs_bounds(env)) == ["state"]


@pytest.mark.parametrize("observation", [spaces.Box(0, 1, (0,)), spaces.Dict(), spaces.Tuple(())])
def test_make_refuses_empty_observation_space(observation):
    with pytest.raises(UserError, match="it has no elements; define a space with at least one number"):
        spaces_env(observation=observation)


@pytest.mark.parametrize("dtype", [np.longdouble])
def test_spec_of_refuses_dtypes_unknown_to_torch(dtype):
    with pytest.raises(UserError, match="'state' is a Box of float128, which torch does not support; declare one of"):
        spec_of(spaces_env(observation=spaces.Box(-1, 1, (2,), dtype)))


def test_spec_of_bool_box_is_vector():
    env = spaces_env(observation=spaces.Box(0, 1, (4,), bool))
    part = spec_of(env).obs["state"]
    assert (part.kind, part.dtype, part.shape) == ("vector", "bool", (4,))
    assert readable_space(env.observation_space["state"]) == "Box 4 bool, 0 to 1"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalize_actions_keeps_single_valued_elements(dtype):
    low, high = np.array([0.5, -2, 3], dtype), np.array([0.5, 2, 3], dtype)
    env = make_env("Probe/Spaces-v0", wrapper={"action": spaces.Box(low, high, dtype=dtype)}, normalize_actions=True)
    assert env.action_space == spaces.Box(np.array([0.5, -1, 3], dtype), np.array([0.5, 1, 3], dtype), dtype=dtype)
    assert spec_of(env).action.open == (1,) and spec_of(env).action.size == 1
    (action,) = (layer for layer in layers(env) if isinstance(layer, NormalizeAction))
    assert action.action(np.array([0.5, 0.5, 3], dtype)).tolist() == [0.5, 1, 3]


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ([1, 2], [1, 2], "every element has only one possible value"),
        ([np.inf, 0], [np.inf, 1], r"element \[0\] has the bounds inf and inf"),
    ],
)
def test_action_spec_refuses_bounds_without_choice(low, high, message):
    with pytest.raises(UserError, match=message):
        action_spec(spaces.Box(np.array(low, np.float32), np.array(high, np.float32)))


def test_action_spec_treats_infinite_range_as_unbounded():
    largest = np.finfo(np.float64).max
    spec = action_spec(spaces.Box(-largest, largest, (1,), np.float64))
    assert (spec.low, spec.high) == ((-np.inf,), (np.inf,))


def test_action_spec_refuses_too_many_elements():
    with pytest.raises(UserError, match=r"MultiBinary of shape \[1000, 1000\]: it has 1,000,000 elements"):
        action_spec(spaces.MultiBinary((1000, 1000)))


@pytest.mark.parametrize("action", [spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int64)])
def test_normalize_actions_refuses_discrete_actions(action):
    with pytest.raises(
        UserError, match=r"env.normalize_actions=true: the action space is .*; set env.normalize_actions=false"
    ):
        make_env("Probe/Spaces-v0", wrapper={"action": action}, normalize_actions=True)


CHAIN = {
    "normalize_actions": True,
    "action_repeat": 2,
    "screen_size": 40,
    "grayscale": True,
    "frame_stack": 3,
    "frame_stack_dilation": 2,
    "num_stack": 2,
    "dilation": 2,
    "reward_as_observation": True,
    "max_episode_steps": 8,
}


def test_combined_wrappers_keep_spaces_and_order():
    env = make_env("Probe/Camera-v0", **CHAIN)
    names = [type(layer).__name__ for layer in layers(env)]
    ours = ["TimeLimit", "RewardAsObservation", "ActionsAsObservation", "FrameStack", "ScreenSize"]
    assert names[:8] == [*ours, "FlatDictObservation", "ActionRepeat", "NormalizeAction"]
    spec, (obs, _) = spec_of(env), env.reset(seed=5)
    shapes = {key: (part.shape, part.dtype) for key, part in spec.obs.items()}
    assert shapes == {
        "camera": ((40, 40, 1), "uint8"),
        "arm": ((2,), "float32"),
        "action_stack": ((4,), "float32"),
        "reward": ((1,), "float32"),
    }
    taken = np.array([0.5, -0.5], np.float32)
    for count in range(1, 9):
        assert env.observation_space.contains(obs)
        obs, reward, terminated, truncated, _ = env.step(taken)
        np.testing.assert_allclose(obs["arm"], [2 * count, 5 * count])  # 1 and 2.5, twice an action
        assert (reward, obs["reward"].tolist()) == (2.0, [2.0])
        assert (terminated, truncated) == (False, count == 8)
    assert obs["action_stack"].tolist() == [0.5, -0.5, 0.5, -0.5]


def test_action_repeat_sums_rewards_until_episode_end():
    env = make_env("Probe/Counter-v0", wrapper={"lengths": [5]}, action_repeat=2)
    env.reset(seed=0)
    rows = [env.step(0) for _ in range(3)]
    assert [r[1] for r in rows] == [1 + 2, 3 + 4, 5]  # the last action ends the episode after one step
    assert [r[2] for r in rows] == [False, False, True]
    assert [r[0]["state"][1] for r in rows] == [2, 4, 5]


def test_mask_velocities_zeroes_only_velocities():
    plain, masked = make_env("CartPole-v1"), make_env("CartPole-v1", mask_velocities=True)
    a, b = plain.reset(seed=3)[0]["state"], masked.reset(seed=3)[0]["state"]
    assert (b[[1, 3]] == 0).all() and (a[[0, 2]] == b[[0, 2]]).all() and (a[[1, 3]] != 0).all()
    a, b = plain.step(1)[0]["state"], masked.step(1)[0]["state"]  # the simulation still has the velocities
    assert (b[[1, 3]] == 0).all() and (a[[0, 2]] == b[[0, 2]]).all()


def test_mask_velocities_refuses_unknown_id():
    with pytest.raises(UserError, match=r"env.mask_velocities=true"):
        make_env("FrozenLake-v1", mask_velocities=True)


def test_action_stack_is_one_hot_and_dilated():
    env = make_env("Probe/Counter-v0", wrapper={"lengths": [9]}, num_stack=2, noop=2, dilation=2)
    stacks = [env.reset(seed=0)[0]["action_stack"]] + [env.step(a)[0]["action_stack"] for a in (0, 1, 0, 1)]
    one_hot = np.eye(3, dtype=np.float32)
    # Last four actions: [2 2 2 2] [2 2 2 0] [2 2 0 1] [2 0 1 0] [0 1 0 1]; every second of them, the newest last.
    pairs = [(2, 2), (2, 0), (2, 1), (0, 0), (1, 1)]
    np.testing.assert_array_equal(np.stack(stacks), [np.concatenate([one_hot[a], one_hot[b]]) for a, b in pairs])
    assert env.observation_space["action_stack"].shape == (6,)


def test_action_stack_encodes_multi_discrete_actions():
    env = spaces_env_with_stack(spaces.MultiDiscrete([3, 2], start=[1, -1]), noop=[3, -1])
    assert env.reset(seed=0)[0]["action_stack"].tolist() == [0, 0, 1, 1, 0]
    assert env.step(np.array([1, 0]))[0]["action_stack"].tolist() == [1, 0, 0, 0, 1]


def test_action_stack_keeps_box_actions():
    env = spaces_env_with_stack(spaces.Box(-2, 2, (2,)), noop=0.5)
    assert env.reset(seed=0)[0]["action_stack"].tolist() == [0.5, 0.5]
    assert env.step(np.array([1, -2], np.float32))[0]["action_stack"].tolist() == [1, -2]


def spaces_env_with_stack(action, noop):
    return make_env("Probe/Spaces-v0", wrapper={"action": action}, num_stack=1, noop=noop)


@pytest.mark.parametrize("noop", [0, [1, -1, 1], [4, 0], "left", [1.5, 0]])
def test_actions_as_observation_refuses_invalid_noop(noop):
    with pytest.raises(UserError, match=r"env.actions_as_observation.noop="):
        spaces_env_with_stack(spaces.MultiDiscrete([3, 2], start=[1, -1]), noop=noop)


def test_reward_as_observation_is_zero_after_reset():
    env = make_env("Probe/Counter-v0", reward_as_observation=True)
    assert env.reset(seed=0)[0]["reward"].tolist() == [0]
    assert env.step(0)[0]["reward"].tolist() == [1]
    assert spec_of(env).obs["reward"].dtype == "float32"


def test_max_episode_steps_counts_repeated_actions_once():
    env = make_env("Probe/Counter-v0", wrapper={"lengths": [50]}, action_repeat=3, max_episode_steps=2)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    assert env.unwrapped.count == 6


def test_probe_envs_are_registered():
    assert "Probe/Counter-v0" in gymnasium.registry and probe_envs.Counter
