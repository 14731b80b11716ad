"""Exact resume of vectorized environments in tiers snapshot, replay and boundary."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlcore.envs.exact.recording import random_action
from rlcore.envs.make import EnvSettings
from rlcore.envs.vector.choose import make_vector_env
from rlcore.errors import RunError
from rlcore.store.checkpoint import nested_state
from rlcore.store.compare import tensor_digests
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.rlcore.envs.test_make import CHAIN


def vector(env_id: str, tier: str, num_envs: int = 2, seed: int = 11, **options):
    settings = EnvSettings(env_id, **options)
    fresh = env_id.startswith("BipedalWalker")
    return make_vector_env(settings, num_envs=num_envs, seed=seed, tier=tier, fresh_instance=fresh)


def actions_for(envs, steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [np.stack([np.asarray(random_action(envs.spec, rng)) for _ in range(envs.num_envs)]) for _ in range(steps)]


def as_bytes(arrival) -> bytes:
    parts = [*arrival.obs.values(), arrival.reward, arrival.terminated, arrival.truncated, arrival.is_first]
    return b"".join(part.tobytes() for part in parts)


def through_disk(state):
    """The state after saving and loading: arrays as raw bytes, everything else as JSON."""
    if isinstance(state, np.ndarray):
        return np.frombuffer(state.tobytes(), state.dtype).reshape(state.shape).copy()
    if isinstance(state, dict):
        assert all(type(key) is str for key in state)
        return {key: through_disk(value) for key, value in state.items()}
    if isinstance(state, list):
        return [through_disk(value) for value in state]
    assert state is None or type(state) in (bool, int, float, str), state
    return json.loads(json.dumps(state, allow_nan=False))


def ends_of(arrivals) -> list[int]:
    return [i for i, a in enumerate(arrivals) if (a.terminated | a.truncated).any()]


RESUMES = [
    ("CartPole-v1", "snapshot", 120),
    ("Pendulum-v1", "snapshot", 420),
    ("FrozenLake-v1", "snapshot", 80),
    ("Taxi-v4", "snapshot", 430),
    ("Blackjack-v1", "snapshot", 20),
    ("MountainCar-v0", "snapshot", 420),
    ("LunarLander-v3", "replay", 260),
    ("BipedalWalker-v3", "replay", 150),
    ("HalfCheetah-v5", "replay", 60),
    ("Hopper-v5", "replay", 60),
    ("Probe/Opaque-v0", "replay", 50),
]


@pytest.mark.parametrize(("env_id", "tier", "steps"), RESUMES)
def test_load_state_dict_resumes_bit_for_bit(env_id, tier, steps):
    envs = vector(env_id, tier)
    actions = actions_for(envs, steps)
    arrivals = [envs.reset()] + [envs.step(action) for action in actions]
    episodes = envs.pop_episodes()
    ends = ends_of(arrivals)
    # At the start, in the middle, at an episode end (reset pending), before and after it, and at the last step.
    moments = {0, steps // 3, steps - 1} | {m for end in ends[:1] for m in (end - 1, end, end + 1) if m < steps}
    saving, states = vector(env_id, tier), {}
    saving.reset()
    for index, action in enumerate(actions):
        if index in moments:
            states[index] = through_disk(saving.state_dict())
        assert as_bytes(saving.step(action)) == as_bytes(arrivals[index + 1])  # saving changes nothing
    for moment in sorted(moments):
        other = vector(env_id, tier)
        other.load_state_dict(states[moment])
        rest = [other.step(action) for action in actions[moment:]]
        assert [as_bytes(a) for a in rest] == [as_bytes(a) for a in arrivals[moment + 1 :]], (env_id, moment)
        assert other.pop_episodes() == episodes  # the state includes finished episodes
        other.close()
    assert ends or env_id in ("HalfCheetah-v5",)
    envs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Probe/Camera-v0"])
def test_state_dict_includes_wrappers(env_id):
    options = {"num_stack": 3, "reward_as_observation": True, "max_episode_steps": 7, "action_repeat": 2}
    if env_id == "Probe/Camera-v0":
        options = CHAIN
    else:
        options |= {"mask_velocities": True, "image_key": "rgb", "screen_size": 40, "grayscale": True}
    envs = vector(env_id, "snapshot", **options)
    actions = actions_for(envs, 30)
    envs.reset()
    for action in actions[:4]:
        envs.step(action)
    other = vector(env_id, "snapshot", **options)
    other.load_state_dict(through_disk(envs.state_dict()))
    for action in actions[4:]:
        assert as_bytes(envs.step(action)) == as_bytes(other.step(action))


@pytest.mark.parametrize(("env_id", "tier"), [("CartPole-v1", "snapshot"), ("LunarLander-v3", "replay")])
def test_state_dict_size_is_independent_of_num_envs(env_id, tier):
    parts = []
    for num_envs in (12, 48):
        envs = vector(env_id, tier, num_envs)
        envs.reset()
        for action in actions_for(envs, 40):
            envs.step(action)
        parts.append((len(tensor_digests(envs.state_dict())), len(nested_state.encode(envs.state_dict())[0])))
        envs.close()
    assert parts[0] == parts[1]


def test_load_state_dict_rewinds_used_vector():
    envs = vector("CartPole-v1", "snapshot")
    actions = actions_for(envs, 60)
    envs.reset()
    state = envs.state_dict()
    first = [as_bytes(envs.step(a)) for a in actions]
    envs.load_state_dict(state)
    assert [as_bytes(envs.step(a)) for a in actions] == first


def test_boundary_makes_resumed_run_equal():
    envs = vector("LunarLander-v3", "boundary")
    actions = actions_for(envs, 90)
    envs.reset()
    for action in actions[:40]:
        envs.step(action)
    with pytest.raises(RunError, match="boundary"):
        envs.state_dict()
    envs.boundary()
    other = vector("LunarLander-v3", "boundary")
    other.load_state_dict(through_disk(envs.state_dict()))
    for action in actions[40:]:
        assert as_bytes(envs.step(action)) == as_bytes(other.step(action))


def test_load_state_dict_refuses_deviating_replay():
    envs = vector("LunarLander-v3", "replay")
    envs.reset()
    for action in actions_for(envs, 5):
        envs.step(action)
    state = envs.state_dict()
    state["last"]["obs"]["state"][1, 0] += np.float32(1e-6)
    with pytest.raises(RunError, match=r"environment 1: .* replayed with the 5 saved actions, .* 'state' differs"):
        vector("LunarLander-v3", "replay").load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("CartPole-v1", "replay", 2), "saved with tier=snapshot, but tier is replay now"),
        (("CartPole-v1", "snapshot", 3), "saved with num_envs=2, but num_envs is 3 now"),
        (("Acrobot-v1", "snapshot", 2), "CartPoleEnv, but this environment is .*AcrobotEnv"),
    ],
)
def test_load_state_dict_refuses_state_of_other_environment(other, message):
    envs = vector("CartPole-v1", "snapshot")
    envs.reset()
    state = envs.state_dict()
    if other[0] == "Acrobot-v1":
        state["last"]["obs"]["state"] = np.zeros((2, 6), np.float32)
    with pytest.raises(RunError, match=message):
        vector(*other).load_state_dict(state)


def test_state_dict_names_engine_without_snapshot():
    envs = vector("LunarLander-v3", "snapshot")
    envs.reset()
    with pytest.raises(RunError, match=r"LunarLander.world cannot be saved"):
        envs.state_dict()
