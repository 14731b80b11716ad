"""Autoreset alignment, seeds, checks and episode statistics of environments in one process."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rlcore import streams
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.serial import SerialVectorEnv, env_actions
from rlcore.errors import EnvironmentFault
from rlcore.types import Episode
from tests.rlcore.envs import probe_envs


def counters(num_envs: int = 1, tier: str = "snapshot", fresh_instance: bool = False, **wrapper) -> SerialVectorEnv:
    settings = EnvSettings("Probe/Counter-v0", wrapper=wrapper)
    seeds = lambda env, episode: 1000 * env + episode  # noqa: E731
    return SerialVectorEnv(lambda: make(settings), num_envs, seeds, tier, fresh_instance)


def unwrapped(envs: SerialVectorEnv, index: int = 0) -> probe_envs.Counter:
    return envs._envs[index].env.unwrapped


# Alignment

# Episode 0 terminates after 2 actions, episode 1 is truncated after 1; reward = 10 * episode + step.
#   obs (episode, step)  reward  terminated  truncated  is_first
TABLE = [
    ((0, 0), 0, False, False, True),
    ((0, 1), 1, False, False, False),
    ((0, 2), 2, True, False, False),
    ((1, 0), 0, False, False, True),  # the action before this row is ignored
    ((1, 1), 11, False, True, False),
    ((2, 0), 0, False, False, True),
    ((2, 1), 21, False, False, False),
    ((2, 2), 22, True, False, False),
]


def rows_of(envs, steps: int) -> list:
    arrivals = [envs.reset()] + [envs.step(np.array([i % 3] * envs.num_envs)) for i in range(steps)]
    return [
        [(tuple(a.obs["state"][i]), a.reward[i], a.terminated[i], a.truncated[i], a.is_first[i]) for a in arrivals]
        for i in range(envs.num_envs)
    ]


def test_serial_vector_matches_autoreset_table():
    envs = counters(lengths=[2, 1])
    assert rows_of(envs, 7)[0] == TABLE
    # The actions were 0 1 2 0 1 2 0; the third and the fifth were ignored, since their episodes had ended.
    assert unwrapped(envs).taken == [0, 1, 0, 2, 0]


def test_serial_vector_resets_environments_independently():
    # The same class with other episode lengths per environment.
    lengths = iter([(2, 1), (3, 3)])
    envs = SerialVectorEnv(
        lambda: make(EnvSettings("Probe/Counter-v0", wrapper={"lengths": next(lengths)})), 2, lambda e, k: None
    )
    first, second = rows_of(envs, 7)
    assert first == TABLE
    assert [row[4] for row in second] == [True, False, False, False, True, False, False, False]


def test_step_never_overwrites_returned_arrays():
    envs = counters(num_envs=2, lengths=[2])
    arrivals = [envs.reset()] + [envs.step(np.zeros(2, int)) for _ in range(4)]
    assert [a.obs["state"][0, 1] for a in arrivals] == [0, 1, 2, 0, 1]
    assert [bool(a.is_first[0]) for a in arrivals] == [True, False, False, True, False]


def test_time_step_dtypes_match_contract():
    arrival = make_vector_env(EnvSettings("FrozenLake-v1"), num_envs=3, seed=1).reset()
    assert arrival.obs["state"].dtype == np.int64 and arrival.obs["state"].shape == (3,)
    assert arrival.reward.dtype == np.float32
    assert {a.dtype for a in (arrival.terminated, arrival.truncated, arrival.is_first)} == {np.dtype(bool)}


def test_step_refuses_wrong_action_shape():
    envs = make_vector_env(EnvSettings("Pendulum-v1"), num_envs=2, seed=1)
    envs.reset()
    with pytest.raises(AssertionError):
        envs.step(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1", "LunarLander-v3", "Hopper-v5"]
)
def test_serial_vector_matches_separate_environments(env_id):
    envs = make_vector_env(EnvSettings(env_id), num_envs=2, seed=5)
    alone = [make(EnvSettings(env_id)) for _ in range(2)]
    rng = np.random.default_rng(0)
    shape, nvec = envs.spec.action.shape, envs.spec.action.nvec
    expected = [(env.reset(seed=streams.integer(5, "env", 0, i))[0], 0.0, False, False) for i, env in enumerate(alone)]
    arrival = envs.reset()
    for _ in range(90):
        for i, (obs, reward, terminated, truncated) in enumerate(expected):
            assert all((arrival.obs[k][i] == v).all() for k, v in obs.items())
            assert arrival.reward[i] == np.float32(reward)
            assert (arrival.terminated[i], arrival.truncated[i]) == (terminated, truncated)
        action = rng.integers(0, nvec[0], 2) if nvec else rng.uniform(-1, 1, (2, *shape)).astype(np.float32)
        expected = [
            (env.reset()[0], 0.0, False, False) if row[2] or row[3] else env.step(a)[:4]
            for env, row, a in zip(alone, expected, env_actions(action), strict=True)
        ]
        arrival = envs.step(action)
    assert envs.pop_episodes() or env_id in ("Pendulum-v1", "LunarLander-v3", "Taxi-v4")


# Episodes


def test_pop_episodes_returns_each_episode_once():
    envs = counters(num_envs=2, lengths=[2, 1])
    rows_of(envs, 7)
    # rewards 1+2, then 11, then 21+22
    expected = [(3.0, 2), (11.0, 1), (43.0, 2)]
    assert envs.pop_episodes() == [Episode(i, ret, length) for ret, length in expected for i in range(2)]
    assert envs.pop_episodes() == []


def test_episode_return_is_summed_in_float64():
    envs = SerialVectorEnv(lambda: make(EnvSettings("Pendulum-v1")), 1, lambda e, k: 3)
    alone = make(EnvSettings("Pendulum-v1"))
    alone.reset(seed=3)
    envs.reset()
    total = 0.0
    for _ in range(200):
        total += float(alone.step(np.zeros(1, np.float32))[1])
        envs.step(np.zeros((1, 1), np.float32))
    assert envs.pop_episodes() == [Episode(0, total, 200)]


# Seeds


def test_tier_snapshot_seeds_environment_once():
    envs = make_vector_env(
        EnvSettings("Probe/Counter-v0", wrapper={"lengths": [1]}), num_envs=2, seed=7, rank=3, offset=4
    )
    rows_of(envs, 4)
    assert [unwrapped(envs, i).seeds for i in range(2)] == [
        [streams.integer(7, "env", 3, 4 + i), None, None] for i in range(2)
    ]


def test_tier_replay_seeds_every_episode():
    envs = make_vector_env(
        EnvSettings("Probe/Counter-v0", wrapper={"lengths": [1]}), num_envs=2, seed=7, purpose="env_eval", tier="replay"
    )
    rows_of(envs, 4)
    assert [unwrapped(envs, i).seeds for i in range(2)] == [
        [streams.integer(7, "env_eval", 0, i, k) for k in range(3)] for i in range(2)
    ]


def test_serial_vector_uses_given_episode_seeds():
    envs = counters(num_envs=2, lengths=[1])
    rows_of(envs, 4)
    assert [unwrapped(envs, i).seeds for i in range(2)] == [[0, 1, 2], [1000, 1001, 1002]]


def test_adjacent_seeds_share_no_initial_state():
    starts = [make_vector_env(EnvSettings("CartPole-v1"), num_envs=4, seed=s).reset().obs["state"] for s in (0, 1)]
    rows = {row.tobytes() for start in starts for row in start}
    assert len(rows) == 8


def test_fresh_instance_recreates_environment_per_episode():
    envs = counters(lengths=[2], fresh_instance=True, tier="replay")
    # The counter's episode number lives in the instance: it stays 0.
    assert {row[0][0] for row in rows_of(envs, 8)[0]} == {0}


# Faults


def play(envs, steps: int = 6) -> None:
    envs.reset()
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, int))


def one_faulty(fault: str, index: int = 1) -> SerialVectorEnv:
    indices = iter(range(10))
    return SerialVectorEnv(
        lambda: make(
            EnvSettings("Probe/Counter-v0", wrapper={"lengths": [5], "fault": fault if next(indices) == index else ""})
        ),
        2,
        lambda e, k: None,
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", r"key 'state' is nan at \[1\]"),
        ("shape", r"key 'state' has shape \(1,\), but its space has \(2,\)"),
        ("text", "key 'state' has type <U1"),
        ("reward", "reward is inf"),
        ("reward_huge", "reward is 1e\\+300"),
        ("reward_huge_int", "reward is an integer too large for a float$"),
        ("beyond", r"key 'state' is 1e\+200 at \[1\], but agents compute in float32, whose largest number is 3.4e\+38"),
        ("reward_array", "reward is array"),
        ("raise", "step raised RuntimeError: the engine said no$"),
    ],
)
def test_step_fault_names_environment_step_and_key(fault, message):
    with pytest.raises(EnvironmentFault, match=f"^environment 1, step 2 of its episode: {message}"):
        play(one_faulty(fault))


@pytest.mark.parametrize(
    ("old", "size", "message"),
    [
        ("reset", 3, r"step 0 of its episode: reset returned only one ndarray \(the old Gym API\), but Gymnasium's"),
        ("reset", 2, "step 0 of its episode: reset returned only one ndarray"),  # unpacks into two values
        ("reset without seed", 3, "step 0 of its episode: reset returned only one ndarray"),
        ("step", 3, r"step 1 of its episode: step returned 4 values \(the old Gym API\), but Gymnasium's step returns"),
        ("none", 3, "step 1 of its episode: step returned None, but Gymnasium's"),
    ],
)
def test_old_gym_api_is_refused_with_advice(old, size, message):
    settings = EnvSettings("Probe/OldForm-v0", wrapper={"old": old, "size": size})
    with pytest.raises(EnvironmentFault, match=f"{message}.*shimmy.GymV21CompatibilityV0"):
        envs = make_vector_env(settings, num_envs=1, seed=0, tier="replay")
        envs.reset()
        envs.step(np.zeros(1, np.int64))


def test_step_accepts_large_finite_observation():
    envs = counters(lengths=[5], fault="huge")
    play(envs)
    assert envs.out_of_bounds == {"state": 1}


def test_step_names_missing_observation_key():
    envs = counters()
    envs._envs[0].env.step = lambda action: ({}, 0.0, False, False, {})
    with pytest.raises(EnvironmentFault, match="key 'state' is missing"):
        play(envs)


def test_out_of_bounds_values_warn_once(caplog):
    envs = counters(num_envs=2, lengths=[3])
    envs.reset()
    for index in range(2):
        unwrapped(envs, index).count = 150
        envs._envs[index].env.unwrapped.lengths = (1000,)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            envs.step(np.zeros(2, int))
    assert envs.out_of_bounds == {"state": 6}
    assert [r.getMessage() for r in caplog.records if "outside the bounds" in r.getMessage()] != []
    assert len(caplog.records) == 1


def test_step_refuses_index_outside_discrete_space():
    envs = make_vector_env(EnvSettings("FrozenLake-v1"), num_envs=2, seed=1)
    envs.reset()
    envs._envs[1].env.unwrapped.s = 16  # `step` looks up this state in table P
    envs._envs[1].env.unwrapped.P[16] = {a: [(1.0, 16, 0.0, False)] for a in range(4)}
    with pytest.raises(EnvironmentFault, match=r"environment 1, step 1 .*'state'.*16"):
        envs.step(np.zeros(2, int))


# Boundary tier


def test_boundary_truncates_episodes_and_recreates_environments():
    envs = counters(num_envs=2, tier="boundary", lengths=[4])
    envs.reset()
    envs.step(np.zeros(2, int))
    before = envs.step(np.zeros(2, int))
    cut = envs.boundary()
    assert before.truncated.tolist() == [False, False] and cut.truncated.tolist() == [True, True]
    assert (cut.obs["state"] == before.obs["state"]).all() and (cut.reward == before.reward).all()
    assert envs.pop_episodes() == [Episode(0, 3.0, 2), Episode(1, 3.0, 2)]
    after = envs.step(np.zeros(2, int))
    assert after.is_first.all() and (after.obs["state"] == [[0, 0], [0, 0]]).all()  # episode 0 of a new instance
    assert [unwrapped(envs, i).seeds for i in range(2)] == [[1], [1001]]  # with the seed of the second episode


def test_boundary_is_noop_for_tier_snapshot():
    envs = counters(lengths=[4])
    assert envs.boundary() is None
    envs.reset()
    last = envs.step(np.zeros(1, int))
    assert envs.boundary() is last and not last.truncated.any()
    assert envs.step(np.zeros(1, int)).obs["state"].tolist() == [[0, 2]]
