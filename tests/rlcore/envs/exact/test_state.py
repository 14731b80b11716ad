"""Capture and restore of the state of one environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlcore.envs.exact.recording import random_action, time_step_bytes
from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import RunError
from tests.rlcore.envs.vector.test_resume import through_disk


def test_restore_recovers_all_plain_attributes():
    class Plain(gymnasium.Env):
        def __init__(self):
            self.observation_space = self.action_space = gymnasium.spaces.Discrete(2)

    from collections import deque

    first, second = Plain(), Plain()
    first.values = [1, 2.5, float("inf"), None, True, "x", (1, [2]), {"a": np.float32(3)}, deque([1, 2], maxlen=2)]
    first.array, first.scalar, first.later = np.arange(3, dtype=np.uint8), np.float64(0.1), {3, 1}
    first.rng = np.random.Generator(np.random.Philox(5))
    first.rng.random(7)
    first.old = np.random.RandomState(5)
    first.old.normal()
    second.old = shared = np.random.RandomState(6)  # shared generators exist in Crafter
    second.stale = 5  # an attribute that only this environment has
    restore(second, through_disk(capture(first)))
    assert second.values == first.values and second.values[-1].maxlen == 2
    assert type(second.values[6]) is tuple and type(second.values[7]["a"]) is np.float32
    assert second.array.dtype == np.uint8 and second.array.tolist() == [0, 1, 2]
    assert type(second.scalar) is np.float64 and second.later == {1, 3}
    assert second.rng.random() == first.rng.random()
    assert second.old is shared and second.old.normal() == first.old.normal()
    assert not hasattr(second, "stale")
    assert second.array is not first.array


def test_restore_works_in_place():
    first, second = (make(EnvSettings("FrozenLake-v1")) for _ in range(2))
    first.reset(seed=1)
    state = capture(first)
    second.reset(seed=2)
    shared = second.unwrapped.np_random
    second.step(1)
    restore(second, state)
    assert second.unwrapped.np_random is shared  # other objects may reference it
    for action in (1, 2, 1, 2, 1):
        assert first.step(action)[:4] == second.step(action)[:4]
    assert first.unwrapped.np_random.random() == second.unwrapped.np_random.random()


ALL = {"frame_stack": 3, "num_stack": 2, "dilation": 2, "reward_as_observation": True, "max_episode_steps": 9}


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("point_mass", {"normalize_actions": True}),
        ("point_mass", {"action_repeat": 3}),
        ("CartPole-v1", {"mask_velocities": True}),
        ("point_mass", {"image_key": "rgb"}),
        ("crosshair", {"screen_size": 32}),
        ("crosshair", {"grayscale": True}),
        ("crosshair", {"frame_stack": 4, "frame_stack_dilation": 2}),
        ("crosshair", {"num_stack": 3, "dilation": 2}),
        ("point_mass", {"num_stack": 2, "noop": 0.5}),
        ("crosshair", {"reward_as_observation": True}),
        ("crosshair", {"max_episode_steps": 11}),
        ("crosshair", {"screen_size": 32, "grayscale": True, "action_repeat": 2, **ALL}),
        ("point_mass", {"normalize_actions": True, "action_repeat": 2, "image_key": "rgb", **ALL}),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_restore_continues_wrapped_environment_exactly(env_id, options):
    one, other = (make(EnvSettings(env_id, **options)) for _ in range(2))
    spec, rng = spec_of(one), np.random.default_rng(0)

    def arrive(env, action, over):
        obs, reward, *ends = (*env.reset()[0:1], 0.0, False, False) if over else env.step(action)[:4]
        assert env.observation_space.contains(obs)
        return time_step_bytes(obs, float(reward), *map(bool, ends)), any(ends)

    one.reset(seed=5)
    other.reset(seed=6)
    over, overs = False, 0
    for moment in range(50):
        restore(other, through_disk(capture(one)))
        action = random_action(spec, rng)
        (arrival, after), elsewhere = arrive(one, action, over), arrive(other, action, over)
        assert (arrival, after) == elsewhere, moment
        over, overs = after, overs + after
    assert overs > 0
    one.close()
    other.close()


def test_capture_names_opaque_attribute():
    env = make(EnvSettings("CartPole-v1"))
    env.reset(seed=1)
    assert capture(env)["layers"]
    env.unwrapped.objects = [1, {"deep": [object()]}]
    with pytest.raises(OpaqueStateError, match=r"^CartPoleEnv\.objects$"):
        capture(env)


def test_restore_refuses_changed_transition_table():
    env = make(EnvSettings("FrozenLake-v1"))
    env.reset(seed=1)
    state = capture(env)
    other = make(EnvSettings("FrozenLake-v1", wrapper={"is_slippery": False}))
    with pytest.raises(RunError, match=r"FrozenLakeEnv.P differs"):
        restore(other, state)
