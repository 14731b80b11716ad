"""Exact resume: states, replays, boundaries, and which of them an environment is found to hold."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

from rlcore.envs.card import environment_card, readable_card, time_limit
from rlcore.envs.exact.recording import random_action
from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.exact.tier import measure_tier
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.make import make_vector_env
from rlcore.errors import EnvironmentFault, RunError
from rlcore.spec import EnvSpec
from tests.rlcore.envs import probe_envs


def vector(env_id: str, tier: str, num_envs: int = 2, seed: int = 11, **options):
    settings = EnvSettings(env_id, **options)
    fresh = env_id.startswith("BipedalWalker")
    return make_vector_env(settings, num_envs=num_envs, seed=seed, tier=tier, fresh_instance=fresh)


def actions_for(envs, steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [
        np.stack([np.asarray(random_action(envs.spec.action, rng)) for _ in range(envs.num_envs)]) for _ in range(steps)
    ]


def as_bytes(arrival) -> bytes:
    parts = [*arrival.obs.values(), arrival.reward, arrival.terminated, arrival.truncated, arrival.is_first]
    return b"".join(part.tobytes() for part in parts)


def through_disk(state):
    """The state as a checkpoint keeps it: arrays as raw numbers, everything else as JSON."""
    if isinstance(state, np.ndarray):
        return np.frombuffer(state.tobytes(), state.dtype).reshape(state.shape).copy()
    if isinstance(state, dict):
        assert all(type(key) is str for key in state)
        return {key: through_disk(value) for key, value in state.items()}
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
def test_resumed_anywhere_the_rest_is_the_same_bit_for_bit(env_id, tier, steps):
    envs = vector(env_id, tier)
    actions = actions_for(envs, steps)
    arrivals = [envs.reset()] + [envs.step(action) for action in actions]
    episodes = envs.pop_episodes()
    ends = ends_of(arrivals)
    # Right at the start, in the middle, at an episode's end (reset pending), just before and after it, and at the last.
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
        assert other.pop_episodes() == episodes  # those told before are in the state too
        other.close()
    assert ends or env_id in ("HalfCheetah-v5",)
    envs.close()


def test_wrappers_are_part_of_the_state():
    options = {"num_stack": 3, "reward_as_observation": True, "max_episode_steps": 9, "action_repeat": 2}
    envs = vector("CartPole-v1", "snapshot", **options)
    actions = actions_for(envs, 30)
    envs.reset()
    for action in actions[:4]:
        envs.step(action)
    other = vector("CartPole-v1", "snapshot", **options)
    other.load_state_dict(through_disk(envs.state_dict()))
    for action in actions[4:]:
        assert as_bytes(envs.step(action)) == as_bytes(other.step(action))


def test_a_used_vector_can_go_back():
    envs = vector("CartPole-v1", "snapshot")
    actions = actions_for(envs, 60)
    envs.reset()
    state = envs.state_dict()
    first = [as_bytes(envs.step(a)) for a in actions]
    envs.load_state_dict(state)
    assert [as_bytes(envs.step(a)) for a in actions] == first


def test_a_boundary_makes_interrupted_and_uninterrupted_runs_equal():
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


def test_a_replay_that_comes_out_differently_is_refused():
    envs = vector("LunarLander-v3", "replay")
    envs.reset()
    for action in actions_for(envs, 5):
        envs.step(action)
    state = envs.state_dict()
    state["last"]["obs"]["state"][1, 0] += np.float32(1e-6)
    with pytest.raises(RunError, match=r"environment 1: replaying the 5 actions .* 'state'"):
        vector("LunarLander-v3", "replay").load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (("CartPole-v1", "replay", 2), "tier snapshot, these have replay"),
        (("CartPole-v1", "snapshot", 3), "environments 2, these have 3"),
        (("Acrobot-v1", "snapshot", 2), "CartPoleEnv, this environment is .*AcrobotEnv"),
    ],
)
def test_a_state_of_other_environments_is_refused(other, says):
    envs = vector("CartPole-v1", "snapshot")
    envs.reset()
    state = envs.state_dict()
    if other[0] == "Acrobot-v1":
        state["last"]["obs"]["state"] = np.zeros((2, 6), np.float32)
    with pytest.raises(RunError, match=says):
        vector(*other).load_state_dict(state)


def test_a_snapshot_of_an_engine_is_refused_by_name():
    envs = vector("LunarLander-v3", "snapshot")
    envs.reset()
    with pytest.raises(RunError, match=r"LunarLander.world cannot be saved"):
        envs.state_dict()


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
    second.stale = 5  # came into being in this one only
    restore(second, through_disk(capture(first)))
    assert second.values == first.values and second.values[-1].maxlen == 2
    assert type(second.values[6]) is tuple and type(second.values[7]["a"]) is np.float32
    assert second.array.dtype == np.uint8 and second.array.tolist() == [0, 1, 2]
    assert type(second.scalar) is np.float64 and second.later == {1, 3}
    assert second.rng.random() == first.rng.random()
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


# Tiers


@pytest.mark.parametrize(
    ("env_id", "tier", "fresh"),
    [
        ("CartPole-v1", "snapshot", False),
        ("Acrobot-v1", "snapshot", False),
        ("Pendulum-v1", "snapshot", False),
        ("MountainCar-v0", "snapshot", False),
        ("FrozenLake-v1", "snapshot", False),
        ("Taxi-v4", "snapshot", False),
        ("Blackjack-v1", "snapshot", False),
        ("Probe/Counter-v0", "snapshot", False),
        ("LunarLander-v3", "replay", False),
        ("BipedalWalker-v3", "replay", True),  # its world is built once and remembers the episode before
        ("Hopper-v5", "replay", False),
        ("HalfCheetah-v5", "replay", False),
        ("Probe/Opaque-v0", "replay", False),
    ],
)
def test_the_tier_is_found_by_trying(env_id, tier, fresh):
    report = measure_tier(lambda: make(EnvSettings(env_id)), 3)
    assert (report.tier, report.fresh_instance, report.deterministic) == (tier, fresh, True)
    assert report.episodes > 1 and report.steps > 10
    assert (report.reason == "") == (tier == "snapshot")


def test_an_engine_that_remembers_needs_a_fresh_instance():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"stale": True})), 3)
    assert (report.tier, report.fresh_instance) == ("replay", True)
    assert "used environment differs" in report.reason


def test_an_environment_that_no_seed_decides_is_of_the_last_tier():
    report = measure_tier(lambda: make(EnvSettings("Probe/Opaque-v0", wrapper={"wild": True})), 3)
    assert (report.tier, report.deterministic) == ("boundary", False)


def test_a_snapshot_that_looks_complete_but_is_not_is_found_out():
    assert capture(probe_envs.Hidden())["layers"]
    report = measure_tier(lambda: make(EnvSettings("Probe/Hidden-v0")), 3)
    assert "went on differently" in report.reason


def test_environments_that_influence_each_other_are_of_the_last_tier_though_each_is_deterministic():
    report = measure_tier(lambda: make(EnvSettings("Probe/Hidden-v0")), 3)
    assert (report.tier, report.deterministic) == ("boundary", True)
    assert "two environments in one process influence each other" in report.reason


def test_the_same_probe_gives_the_same_report():
    reports = [measure_tier(lambda: make(EnvSettings("LunarLander-v3")), 3) for _ in range(2)]
    assert reports[0] == reports[1]


# Card


def test_the_card_says_what_a_run_needs():
    card = environment_card(EnvSettings("Pendulum-v1"), 0)
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert (card["id"], card["tier"], card["fresh_instance"], card["deterministic"]) == (
        "Pendulum-v1",
        "snapshot",
        False,
        True,
    )
    assert (card["max_episode_steps"], card["time_limit_checked"]) == (200, "an episode was truncated there")
    assert EnvSpec.from_json(card["spec"]).obs["state"].shape == (3,)
    assert card["packages"]["gymnasium"] == gymnasium.__version__
    low, high = card["reward_seen"]
    assert -16.3 < low < high <= 0
    text = readable_card(card)
    assert "# Pendulum-v1" in text and "**snapshot**" in text and "200 actions" in text


def test_the_card_names_the_engine_and_why_a_snapshot_is_not_possible():
    card = environment_card(EnvSettings("Hopper-v5"), 0)
    assert set(card["packages"]) == {"gymnasium", "numpy", "mujoco"}
    assert "cannot be saved" in readable_card(card)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 500),
        ({"max_episode_steps": 30}, 30),
        ({"action_repeat": 3}, 167),
        ({"action_repeat": 3, "max_episode_steps": 200}, 167),
    ],
)
def test_the_time_limit_is_counted_in_actions(options, limit):
    env = make(EnvSettings("CartPole-v1", **options))
    assert time_limit(env) == limit
    assert time_limit(make(EnvSettings("Blackjack-v1"))) is None


def test_the_card_is_refused_for_an_environment_that_misbehaves():
    for fault, says in (("nan", "key 'state' is nan"), ("raise", "RuntimeError: the engine said no")):
        with pytest.raises(EnvironmentFault, match=says):
            environment_card(EnvSettings("Probe/Counter-v0", wrapper={"lengths": [5], "fault": fault}), 0)
