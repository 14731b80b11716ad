"""Environments that fail and are built anew: the episode is truncated, and nothing else is different."""

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
def opened():
    made = []
    yield lambda *args, **options: made.append(vector(*args, **options)) or made[-1]
    for envs in made:
        envs.close()


def vector(env_id=COUNTER, sync=True, attempts=2, wrapper=None, tier="snapshot", **more):
    restart = RestartConfig(attempts, window=300.0, wait=0.0)
    config = EnvConfig(id=env_id, sync_env=sync, restart_on_exception=restart, wrapper=wrapper or {}, **more)
    return make_vector_env(config, num_envs=2, seed=3, tier=tier)


def fault(kind, at=2):
    """A counter of four steps that fails in its first episode, and so after every restart again."""
    return {"lengths": [4], "fault": kind, "at": at}


def rows(envs, steps):
    """Observation, reward, truncated and is_first of environment 0 over a reset and some steps."""
    found = [envs.reset()]
    found += [envs.step(np.zeros(2, int)) for _ in range(steps)]
    return [(a.obs["state"][0].tolist(), float(a.reward[0]), bool(a.truncated[0]), bool(a.is_first[0])) for a in found]


CUT = [
    ([0, 0], 0.0, False, True),
    ([0, 1], 1.0, False, False),
    ([0, 1], 0.0, True, False),  # the step that failed: the observation before it, once more
    ([0, 0], 0.0, False, True),
    ([0, 1], 1.0, False, False),
    ([0, 1], 0.0, True, False),
    ([0, 0], 0.0, False, True),
]


@pytest.mark.parametrize(("sync", "kind"), [(True, "raise"), (False, "raise"), (False, "exit")])
def test_a_failed_step_truncates_its_episode_and_another_instance_opens_the_next(opened, caplog, sync, kind):
    envs = opened(sync=sync, wrapper=fault(kind))
    assert rows(envs, 6) == CUT
    assert envs.restarts == 4  # twice in both environments
    said = "its process died (exit code 7)" if kind == "exit" else "step raised RuntimeError: the engine said no"
    assert f"environment 0, step 2 of its episode: {said}; the environment is restarted" in caplog.text
    assert [(e.env_index, e.ret, e.length) for e in envs.pop_episodes()] == [(0, 1.0, 2), (1, 1.0, 2)] * 2


def test_a_process_that_hangs_is_killed_and_another_instance_opens_the_next_episode(opened, caplog):
    envs = opened(sync=False, wrapper=fault("hang"), step_timeout=0.5)
    assert rows(envs, 3) == CUT[:4]
    assert envs.restarts == 2
    assert "environment 0, step 2 of its episode: hung; no answer within 0.5 s" in caplog.text


@pytest.mark.parametrize(("sync", "kind"), [(True, "raise"), (False, "raise"), (False, "exit")])
def test_one_failure_more_than_allowed_ends_the_run(opened, sync, kind):
    envs = opened(sync=sync, wrapper=fault(kind), attempts=1)
    rows(envs, 4)
    kinds, says = (EnvironmentFault, EnvironmentLost), r"environment 0, step 2 .*\(failure 2 within 300 s: env.restart"
    with pytest.raises(kinds, match=says):
        envs.step(np.zeros(2, int))


def test_without_restarts_a_failure_is_told_as_ever(opened):
    envs = opened(wrapper=fault("raise"), attempts=0)
    with pytest.raises(EnvironmentFault, match="the engine said no$"):
        rows(envs, 2)


class Noisy(gymnasium.Env):
    """A walk that fails where the class says so: at calls of `step`, of `reset`, or as it is made."""

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
            self.wreck = object()  # nobody can save it
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
def test_chance_after_a_restart_is_decided_by_the_seed_and_is_nobody_elses(noisy, opened, tier):
    found = []
    for fails in ([3], [3], []):
        noisy(step=fails)
        envs = opened("Restarts/Noisy-v0", tier=tier)
        first = envs.reset().obs["state"].tolist()
        found.append([first, *play(envs, True, 12)])
    assert found[0] == found[1]
    # Environment 1 never notices; environment 0 fails at its second step (calls 1, 3) and opens at row 3.
    assert [row[1] for row in found[0]] == [row[1] for row in found[2]]
    assert found[0][2][0] == found[0][1][0] and found[0][:2] == found[2][:2]
    openings = [row[0] for row in found[2]].index(found[0][3][0]) if tier == "replay" else None
    # Where every episode has a seed, the next one is as it would have been after seven rows; else chance is new.
    assert openings == 7 if tier == "replay" else found[0][3][0] not in [row[0] for row in found[2]]


@pytest.mark.parametrize("tier", ["snapshot", "replay"])
@pytest.mark.parametrize("moment", [1, 2, 3, 4])
def test_a_run_resumed_around_a_failure_goes_on_as_if_nothing_had_happened(noisy, opened, tier, moment):
    noisy(step=[3])
    envs = opened("Restarts/Noisy-v0", tier=tier)
    envs.reset()
    play(envs, True, moment)
    state, restarts = through_disk(envs.state_dict()), envs.restarts
    at = dict(Noisy.calls)
    rest = play(envs, True, 10)
    other = opened("Restarts/Noisy-v0", tier=tier)
    noisy()  # whatever is replayed does not fail again
    other.load_state_dict(state)
    Noisy.fails, Noisy.calls = {"step": [3]}, at
    assert other.restarts == restarts == (moment >= 2)
    assert play(other, True, 10) == rest


def test_a_reset_or_an_instance_that_fails_is_tried_again(noisy, opened):
    noisy(reset=[3], make=[3])  # two are made and reset; the third reset fails, and so does the making of another
    envs = opened("Restarts/Noisy-v0", attempts=3)
    envs.reset()
    arrivals = [envs.step(np.zeros(2, int)) for _ in range(8)]
    assert [i for i, a in enumerate(arrivals) if a.is_first.any()] == [6] and arrivals[6].is_first.all()
    assert [i for i, a in enumerate(arrivals) if a.truncated.any()] == [5]  # its own time limit
    assert (envs.restarts, Noisy.calls["make"], Noisy.calls["reset"]) == (2, 4, 5)


def test_failures_count_within_their_window_alone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlcore.envs.vector.restarts.time.monotonic", lambda: now[0])
    restarts, answers = Restarts(RestartConfig(2, window=10.0, wait=0.0)), []
    for when in (0.0, 1.0, 9.0, 11.5, 12.0):  # at 11.5 those of 9.0 and itself; at 12.0 one more
        now[0] = when
        answers.append(restarts.allow())
    assert answers == [True, True, False, True, False]
