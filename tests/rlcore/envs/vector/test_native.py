"""Natively vectorized environments: equal to single ones bit for bit, and resumable within episodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rlcore.config.groups import ActionsAsObservationConfig, EnvConfig, RestartConfig
from rlcore.config.learning_half import learning_half
from rlcore.envs.exact.stacked import stack, unstack
from rlcore.envs.exact.state import capture
from rlcore.envs.suites import gym
from rlcore.envs.suites.dummy import DummySuite
from rlcore.envs.suites.gym import CartPoleLanes
from rlcore.envs.suites.registry import SUITES
from rlcore.envs.vector import native
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.episodic import EpisodicVectorEnv
from rlcore.envs.vector.native import NativeVectorEnv, is_faster
from rlcore.envs.vector.serial import SerialVectorEnv
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.store.checkpoint import nested_state

B = 5


def envs(vectorization: str = "native", tier: str = "snapshot", **settings: Any) -> EpisodicVectorEnv:
    config = EnvConfig(**{"id": "CartPole-v1", "vectorization": vectorization} | settings)
    return make_vector_env(config, num_envs=B, seed=3, tier=tier)


def play_bytes(vector: EpisodicVectorEnv, steps: int, begin: bool = True, seed: int = 0, width: int = B) -> list[bytes]:
    rng = np.random.default_rng(seed)
    found = [vector.reset()] if begin else []
    found += [vector.step(rng.integers(0, 2, width)) for _ in range(steps)]
    rows = [[*a.obs.values(), a.reward, a.terminated, a.truncated, a.is_first] for a in found]
    return [b"|".join(part.tobytes() for part in row) for row in rows]


@pytest.mark.parametrize("tier", ["snapshot", "replay"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_episode_steps": 9},
        {"vector_key": "vector"},
        {"wrapper": {"sutton_barto_reward": True, "max_episode_steps": 20}},
    ],
)
def test_native_vector_matches_single_environments(tier: str, settings: dict[str, Any]):
    lanes, single = (envs(kind, tier, **settings) for kind in ("native", "single"))
    assert isinstance(lanes, NativeVectorEnv) and not isinstance(single, NativeVectorEnv)
    assert lanes.spec == single.spec
    assert play_bytes(lanes, 120) == play_bytes(single, 120)
    episodes = lanes.pop_episodes()
    assert episodes == single.pop_episodes() and len(episodes) > 10


@pytest.mark.parametrize("steps", [0, 7, 40])
def test_native_vector_resumes_from_encoded_state(steps: int):
    one, other = envs(), envs()
    play_bytes(one, steps)
    play_bytes(other, 11, seed=5)  # loading must replace this state completely
    shape, tensors = nested_state.encode(one.state_dict())
    other.load_state_dict(nested_state.decode(shape, tensors))
    assert play_bytes(one, 60, begin=False, seed=1) == play_bytes(other, 60, begin=False, seed=1)
    assert one.pop_episodes()[-1] == other.pop_episodes()[-1]


def test_step_writes_into_given_time_step():
    own, given = envs(), envs()
    first, into = own.reset(), given.reset()
    for action in np.random.default_rng(0).integers(0, 2, (50, B)):
        first, found = own.step(action), given.step(action, into)
        assert found is into
        for a, b in zip([*first.obs.values(), first.reward], [*into.obs.values(), into.reward], strict=True):
            assert np.array_equal(a, b)
        assert all(np.array_equal(getattr(first, k), getattr(into, k)) for k in ("terminated", "truncated", "is_first"))


def test_native_vector_refuses_invalid_action():
    vector = envs()
    vector.reset()
    with pytest.raises(EnvironmentFault, match="the vectorized step of all environments raised AssertionError"):
        vector.step(np.full(B, 2))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"id": "Acrobot-v1"}, "Acrobot-v1 has no vectorized code .* available for CartPole-v0, CartPole-v1;"),
        ({"id": "phys2d/CartPole-v1"}, "suite is not supported yet"),
        ({"action_repeat": 2}, "cannot be combined with env.action_repeat"),
        ({"mask_velocities": True}, "cannot be combined with env.mask_velocities"),
        ({"reward_as_observation": True}, "cannot be combined with env.reward_as_observation"),
        (
            {"actions_as_observation": ActionsAsObservationConfig(num_stack=2)},
            "cannot be combined with env.actions_as_observation",
        ),
        ({"restart_on_exception": RestartConfig(2)}, "cannot be combined with env.restart_on_exception"),
        ({"sync_env": False}, "set env.sync_env=true"),
        ({"wrapper": {"_target_": "tests.rlcore.envs.probe_envs.Counter"}}, "has no vectorized code"),
    ],
)
def test_vectorization_native_refuses_unsupported_settings(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")
    with pytest.raises(UserError, match=sentence):
        envs(**settings)


def test_native_and_single_states_are_interchangeable():
    for one, other in (("native", "single"), ("single", "native")):
        for steps in (0, 7, 40):
            saving, loading = envs(one), envs(other)
            play_bytes(saving, steps)
            play_bytes(loading, 11, seed=5)  # loading must replace this state completely
            shape, tensors = nested_state.encode(saving.state_dict())
            loading.load_state_dict(nested_state.decode(shape, tensors))
            assert play_bytes(saving, 60, begin=False, seed=1) == play_bytes(loading, 60, begin=False, seed=1)
            assert saving.pop_episodes()[-1] == loading.pop_episodes()[-1]


def test_load_state_dict_refuses_old_state_format():
    one, other = envs(), envs()
    play_bytes(one, 40)
    state = one.state_dict()
    lanes = [{"state": np.zeros(4), "steps": lane["length"], "env": lane["env"]} for lane in unstack(state["lanes"], B)]
    with pytest.raises(RunError, match="by a version of this project that is no longer supported"):
        other.load_state_dict(state | {"lanes": stack(lanes)})


def test_state_dict_matches_states_of_single_environments():
    lanes, single = envs("native"), envs("single")
    assert play_bytes(lanes, 40) == play_bytes(single, 40)
    for vector in (lanes, single):
        vector.step(np.zeros(B, np.int64))
    ours, theirs = (unstack(vector.state_dict()["lanes"], B) for vector in (lanes, single))
    loading = [i for i in range(B) if i not in lanes._pending]
    assert len(loading) > 1
    for i in loading:
        assert native._bits(ours[i]) == native._bits(theirs[i])


def test_state_dict_captures_only_one_lane(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(native, "capture", lambda env: calls.append(env) or capture(env))
    vector = make_vector_env(EnvConfig(id="CartPole-v1", vectorization="native"), num_envs=64, seed=0)
    play_bytes(vector, 30, width=64)
    shape, tensors = nested_state.encode(vector.state_dict())
    assert len(calls) == 1, "the time does not grow with the lanes"
    other = make_vector_env(EnvConfig(id="CartPole-v1", vectorization="native"), num_envs=64, seed=0)
    other.load_state_dict(nested_state.decode(shape, tensors))
    assert play_bytes(vector, 60, begin=False, seed=1, width=64) == play_bytes(other, 60, begin=False, seed=1, width=64)


def test_vectorization_auto_chooses_native_where_faster():
    def chosen(num_envs: int, **settings: Any) -> type:
        vector = make_vector_env(EnvConfig(**{"id": "CartPole-v1"} | settings), num_envs=num_envs, seed=0)
        vector.close()
        return type(vector)

    assert chosen(64) is NativeVectorEnv
    assert chosen(64, max_episode_steps=20) is NativeVectorEnv
    assert chosen(1) is SerialVectorEnv  # faster for one environment
    assert chosen(64, vectorization="single") is SerialVectorEnv
    assert chosen(64, id="Acrobot-v1") is SerialVectorEnv
    assert chosen(64, action_repeat=2) is SerialVectorEnv


def test_wide_native_vector_matches_single_environments():
    """300 steps give many angles; a width that is no power of two tests the remainder of SIMD loops."""
    found = []
    for kind in ("auto", "single"):
        vector = make_vector_env(EnvConfig("CartPole-v1", vectorization=kind), num_envs=37, seed=1)
        rng = np.random.default_rng(0)
        arrivals = [vector.reset()] + [vector.step(rng.integers(0, 2, 37)) for _ in range(300)]
        found.append([(a.obs["state"].tobytes(), a.reward.tobytes(), a.terminated.tobytes()) for a in arrivals])
    assert found[0] == found[1]


def test_vectorization_is_outside_learning_half():
    halves = [learning_half(EnvConfig("CartPole-v1", vectorization=kind)) for kind in ("auto", "native", "single")]
    assert halves[0] == halves[1] == halves[2]


def test_is_faster_rejects_lanes_with_resized_images(monkeypatch: pytest.MonkeyPatch):
    class Pictures(DummySuite):
        def vector(self, env_id: str, arguments: Any) -> Any:
            return object

    monkeypatch.setitem(SUITES, "dummy", Pictures())
    assert not is_faster(EnvConfig("discrete_dummy"), 64)
    with pytest.raises(UserError, match="cannot be combined with ScreenSize"):
        envs(id="discrete_dummy")


def test_lanes_can_return_named_observations(monkeypatch: pytest.MonkeyPatch):
    class Naming(CartPoleLanes):
        def step(self, action: np.ndarray) -> Any:
            obs, *rest = super().step(action)
            return {"state": obs}, *rest

    plain = play_bytes(envs(), 60)
    monkeypatch.setattr(gym, "CartPoleLanes", Naming)
    assert play_bytes(envs(), 60) == plain


def test_is_faster_rejects_inexact_lanes(monkeypatch: pytest.MonkeyPatch):
    class Rounding(CartPoleLanes):
        def step(self, action: np.ndarray) -> Any:
            found = super().step(action)
            self.vector.state[1, 3] *= 1 + 2**-52  # the last bit of one number of one lane
            return found

    monkeypatch.setenv(native.MEASURED, "{}")
    monkeypatch.setattr(gym, "CartPoleLanes", Rounding)
    assert not is_faster(EnvConfig("CartPole-v1"), 64)
    monkeypatch.undo()
    assert is_faster(EnvConfig("CartPole-v1"), 64)


def test_is_faster_inherits_result_of_parent_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(native.MEASURED, "{}")
    assert is_faster(EnvConfig("CartPole-v1"), 64)
    ask = "import sys; from rlcore.envs.vector import native; from rlcore.config.groups import EnvConfig\n"
    ask += "native._play_bytes = None  # a second test would fail\n"
    ask += "sys.exit(0 if native.is_faster(EnvConfig('CartPole-v1'), 64) else 3)"
    assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def test_is_faster_repeats_test_on_other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.MEASURED, "{}")
    for model in ("one", "other"):
        monkeypatch.setattr(native, "processor", lambda model=model: {"model name": model})
        assert is_faster(EnvConfig("CartPole-v1"), 64)
    assert [*json.loads(os.environ[native.MEASURED]).values()] == [True, True]
    assert len(os.environ[native.MEASURED]) < 60  # the kernel limits a variable to 128 KiB


@pytest.mark.parametrize("value", ["0", "off", "[]", '{"a": 1}'])
def test_is_faster_refuses_variable_that_user_has_set(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(native.MEASURED, value)
    with pytest.raises(UserError, match=f"^SHEPHERD_VECTORIZED={re.escape(value)}: only Shepherd .* remove it from"):
        is_faster(EnvConfig("CartPole-v1"), 64)
