"""The state of one environment: read completely or refused, and put back as it was."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.make import EnvSettings, make
from rlcore.errors import RunError
from tests.rlcore.envs.vector.test_resume import through_disk


def test_attributes_of_every_plain_kind_come_back_as_they_were():
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
    second.old = shared = np.random.RandomState(6)  # creatures of Crafter's hold their world's
    second.stale = 5  # came into being in this one only
    restore(second, through_disk(capture(first)))
    assert second.values == first.values and second.values[-1].maxlen == 2
    assert type(second.values[6]) is tuple and type(second.values[7]["a"]) is np.float32
    assert second.array.dtype == np.uint8 and second.array.tolist() == [0, 1, 2]
    assert type(second.scalar) is np.float64 and second.later == {1, 3}
    assert second.rng.random() == first.rng.random()
    assert second.old is shared and second.old.normal() == first.old.normal()
    assert not hasattr(second, "stale")
    assert second.array is not first.array


def test_a_used_environment_is_restored_in_place():
    first, second = (make(EnvSettings("FrozenLake-v1")) for _ in range(2))
    first.reset(seed=1)
    state = capture(first)
    second.reset(seed=2)
    shared = second.unwrapped.np_random
    second.step(1)
    restore(second, state)
    assert second.unwrapped.np_random is shared  # others may hold it
    for action in (1, 2, 1, 2, 1):
        assert first.step(action)[:4] == second.step(action)[:4]
    assert first.unwrapped.np_random.random() == second.unwrapped.np_random.random()


def test_what_cannot_be_read_is_named_not_skipped():
    env = make(EnvSettings("CartPole-v1"))
    env.reset(seed=1)
    assert capture(env)["layers"]
    env.unwrapped.objects = [1, {"deep": [object()]}]
    with pytest.raises(OpaqueStateError, match=r"^CartPoleEnv\.objects$"):
        capture(env)


def test_a_changed_table_is_refused():
    env = make(EnvSettings("FrozenLake-v1"))
    env.reset(seed=1)
    state = capture(env)
    other = make(EnvSettings("FrozenLake-v1", wrapper={"is_slippery": False}))
    with pytest.raises(RunError, match=r"FrozenLakeEnv.P differs"):
        restore(other, state)
