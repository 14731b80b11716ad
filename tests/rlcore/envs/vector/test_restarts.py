"""Restarts of failed environments: the episode is truncated, and everything else continues."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlcore.config.groups import EnvConfig, RestartConfig
from rlcore.envs.vector.choose import make_vector_env
from rlcore.envs.vector.restarts import Restarts
from rlcore.errors import EnvironmentFault, EnvironmentLost
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.rlcore.envs.vector.test_resume import through_disk

COUNTER = "Probe/Counter-v0"


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("SHEPHERD_PLUGINS", "tests.rlcore.envs.probe_envs")


@pytest.fixture
def open_vector():
    vectors = []
    yield lambda *args, **options: vectors.append(vector(*args, **options)) or vectors[-1]
    for envs in vectors:
        envs.close()


def vector(env_id=COUNTER, sync=True, attempts=2, wrapper=None, tier="snapshot", **more):
    restart = RestartConfig(attempts, window=300.0, wait=0.0)
    config = EnvConfig(id=env_id, sync_env=sync, restart_on_exception=restart, wrapper=wrapper or {}, **more)
    return make_vector_env(config, num_envs=2, seed=3, tier=tier)


def fault(kind, at=2):
    """Arguments of a counter that fails in its first episode, and so again after every restart."""
    return {"lengths": [4], "fault": kind, "at": at}


def rows(envs, steps):
    """Observation, reward, truncated and is_first of environment 0 over a reset and some steps."""
    found = [envs.reset()]
    found += [envs.step(np.zeros(2, int)) for _ in range(steps)]
    return [(a.obs["state"][0].tolist(), float(a.reward[0]), bool(a.truncated[0]), bool(a.is_first[0])) for a in found]


CUT = [
    ([0, 0], 0.0, False, True),
    ([0, 1], 1.0, False, False),
    ([0, 1], 0.0, True, False),  # the failed step repeats the observation before it
    ([0, 0], 0.0, False, True),
    ([0, 1], 1.0, False, False),
    ([0, 1], 0.0, True, False),
    ([0, 0], 0.0, False, True),
]


@pytest.mark.parametrize(("sync", "kind"), [(True, "raise"), (False, "raise"), (False, "exit")])
def test_failed_step_truncates_episode_and_restarts(open_vector, caplog, sync, kind):
    envs = open_vector(sync=sync, wrapper=fault(kind))
    assert rows(envs, 6) == CUT
    assert envs.restarts == 4  # twice in both environments
    reason = "its process died (exit code 7)" if kind == "exit" else "step raised RuntimeError: the engine said no"
    assert f"environment 0, step 2 of its episode: {reason}; the environment is restarted" in caplog.text
    assert [(e.env_index, e.ret, e.length) for e in envs.pop_episodes()] == [(0, 1.0, 2), (1, 1.0, 2)] * 2


def test_hanging_process_is_killed_and_restarted(open_vector, caplog):
    envs = open_vector(sync=False, wrapper=fault("hang"), step_timeout=0.5)
    assert rows(envs, 3) == CUT[:4]
    assert envs.restarts == 2
    assert "environment 0, step 2 of its episode: hung; no answer within 0.5 s" in caplog.text


@pytest.mark.parametrize(("sync", "kind"), [(True, "raise"), (False, "raise"), (False, "exit")])
def test_failures_beyond_attempts_raise(open_vector, sync, kind):
    envs = open_vector(sync=sync, wrapper=fault(kind), attempts=1)
    rows(envs, 4)
    kinds, match = (EnvironmentFault, EnvironmentLost), r"environment 0, step 2 .*\(failure 2 within 300 s: env.restart"
    with pytest.raises(kinds, match=match):
        envs.step(np.zeros(2, int))


def test_failure_without_restarts_raises(open_vector):
    envs = open_vector(wrapper=fault("raise"), attempts=0)
    with pytest.raises(EnvironmentFault, match="the engine said no$"):
        rows(envs, 2)


class Noisy(gymnasium.Env):
    """A random walk that fails at the calls of `step`, `reset` or the constructor in `fails`."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    fails: dict[str, list[int]] = {}  # noqa: RUF012  the test's own switch
    calls = {"step": 0, "reset": 0, "make": 0}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.call("make")
        self.render_mode, self.place, self.count = render_mode, 0.0, 0

    def call(self, name):
        Noisy.calls[name] += 1
        if Noisy.calls[name] in Noisy.fails.get(name, ()):
            self.wreck = object()  # a value that `capture` cannot save
            raise RuntimeError(name)

    def reset(self, *, seed=None, options=None):
        self.call("reset")
        super().reset(seed=seed)
        self.place, self.count = float(self.np_random.normal()), 0
        return np.array([self.place]), {}

    def step(self, action):
        self.call("step")
        self.place, self.count = self.place + float(self.np_random.normal()), self.count + 1
        return np.array([self.place]), 0.0, False, self.count >= 6, {}


if "Restarts/Noisy-v0" not in gymnasium.registry:
    gymnasium.register("Restarts/Noisy-v0", entry_point=Noisy)


@pytest.fixture
def noisy():
    def choose(**fails):
        Noisy.fails, Noisy.calls = fails, dict.fromkeys(Noisy.calls, 0)

    yield choose
    choose()


def play(envs, arrivals, steps):
    return [envs.step(np.zeros(2, int)).obs["state"].tolist() for _ in range(steps)] if arrivals else [envs.reset()]


@pytest.mark.parametrize("tier", ["snapshot", "replay"])
def test_restart_is_deterministic_and_affects_one_environment(noisy, open_vector, tier):
    found = []
    for fails in ([3], [3], []):
        noisy(step=fails)
        envs = open_vector("Restarts/Noisy-v0", tier=tier)
        first = envs.reset().obs["state"].tolist()
        found.append([first, *play(envs, True, 12)])
    assert found[0] == found[1]
    # Environment 1 is unaffected; environment 0 fails at its second step (calls 1, 3) and starts an episode at row 3.
    assert [row[1] for row in found[0]] == [row[1] for row in found[2]]
    assert found[0][2][0] == found[0][1][0] and found[0][:2] == found[2][:2]
    openings = [row[0] for row in found[2]].index(found[0][3][0]) if tier == "replay" else None
    # With a seed per episode, the next episode equals the one after seven rows; otherwise it is a new one.
    assert openings == 7 if tier == "replay" else found[0][3][0] not in [row[0] for row in found[2]]


@pytest.mark.parametrize("tier", ["snapshot", "replay"])
@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_resume_around_restart_is_exact(noisy, open_vector, tier, moment):
    noisy(step=[3])
    envs = open_vector("Restarts/Noisy-v0", tier=tier)
    envs.reset()
    play(envs, True, moment)
    state, restarts = through_disk(envs.state_dict()), envs.restarts
    at = dict(Noisy.calls)
    rest = play(envs, True, 10)
    other = open_vector("Restarts/Noisy-v0", tier=tier)
    noisy()  # the replay must not fail again
    other.load_state_dict(state)
    Noisy.fails, Noisy.calls = {"step": [3]}, at
    assert other.restarts == restarts == (moment >= 2)
    assert play(other, True, 10) == rest


def test_failed_reset_or_constructor_is_retried(noisy, open_vector):
    noisy(reset=[3], make=[3])  # after two instances and resets, the third reset and the third constructor call fail
    envs = open_vector("Restarts/Noisy-v0", attempts=3)
    envs.reset()
    arrivals = [envs.step(np.zeros(2, int)) for _ in range(8)]
    assert [i for i, a in enumerate(arrivals) if a.is_first.any()] == [6] and arrivals[6].is_first.all()
    assert [i for i, a in enumerate(arrivals) if a.truncated.any()] == [5]  # its own time limit
    assert (envs.restarts, Noisy.calls["make"], Noisy.calls["reset"]) == (2, 4, 5)


def test_restarts_allow_counts_failures_within_window(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlcore.envs.vector.restarts.time.monotonic", lambda: now[0])
    restarts, answers = Restarts(RestartConfig(2, window=10.0, wait=0.0)), []
    for when in (0.0, 1.0, 9.0, 11.5, 12.0):  # at 11.5, the window contains 9.0 and 11.5; at 12.0 one more
        now[0] = when
        answers.append(restarts.allow())
    assert answers == [True, True, False, True, False]
