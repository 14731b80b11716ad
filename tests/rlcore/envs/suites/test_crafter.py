"""Crafter: seeded, saved exactly, and SheepRL's names for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from flows.config.compose import compose
from rlcore.envs.exact.state import capture, restore
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import spec_of
from rlcore.errors import UserError
from tests.soaking import heavy

pytestmark = heavy

pytest.importorskip("crafter")

SMALL = {"area": [32, 32], "view": [5, 5], "length": 250}  # whose worlds are made in a fifth of a second
PLAYED = """
import hashlib, sys, numpy as np
from rlcore.envs.make import EnvSettings, make
env, rng, digest = make(EnvSettings("crafter_reward", {settings})), np.random.default_rng(0), hashlib.sha256()
digest.update(env.reset(seed=int(sys.argv[1]))[0]["rgb"].tobytes())
for _ in range(250):
    obs, reward, *ends, _ = env.step(int(rng.integers(17)))
    digest.update(obs["rgb"].tobytes() + np.float64(reward).tobytes())
    if any(ends):
        digest.update(env.reset()[0]["rgb"].tobytes())
print(digest.hexdigest())
"""


def made(env_id: str = "crafter_reward", **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, SMALL | wrapper))


def played(env: Any, steps: int, seed: int = 0) -> tuple[list[bytes], int]:
    """Arrivals of random actions, resets among them, and how many episodes ended."""
    rng, found, ended = np.random.default_rng(seed), [], 0
    for _ in range(steps):
        obs, reward, *ends, _ = env.step(int(rng.integers(17)))
        found.append(obs["rgb"].tobytes() + np.float64(reward).tobytes() + bytes(ends))
        if any(ends):
            found.append(env.reset()[0]["rgb"].tobytes())
            ended += 1
    return found, ended


def world(env: Any) -> Any:
    """The map of a new episode."""
    env.reset()
    return env.unwrapped.game._world._mat_map.copy()


def test_spaces_and_ends_are_those_of_sheeprl() -> None:
    with closing(make(EnvSettings("crafter_reward"))) as env:
        part = spec_of(env).obs["rgb"]
        assert (part.kind, part.shape, part.dtype) == ("image", (64, 64, 3), "uint8")
        assert spec_of(env).action.nvec == (17,)
    with closing(made(length=5)) as env:
        env.reset(seed=0)
        assert [env.step(0)[2:4] for _ in range(5)] == [(False, False)] * 4 + [(False, True)]
    with closing(made()) as env:
        env.reset(seed=0)
        env.unwrapped.game._player.health = 0
        assert env.step(0)[2:4] == (True, False)


def test_without_reward_it_plays_the_same_game() -> None:
    with closing(made()) as one, closing(made("crafter_nonreward")) as other:
        one.reset(seed=4)
        other.reset(seed=4)
        rng, rewards = np.random.default_rng(0), []
        for _ in range(150):
            action = int(rng.integers(17))
            (left, reward, *ends, _), (right, none, *others, _) = one.step(action), other.step(action)
            assert (left["rgb"] == right["rgb"]).all() and ends == others and none == 0.0
            rewards.append(reward)
            if any(ends):
                break
        assert any(rewards)


def test_a_seed_decides_all_of_it_in_every_process() -> None:
    """Stock Crafter's creatures lie in sets of addresses: two processes of one seed differ."""

    def digest(hashes: str) -> str:
        code = PLAYED.replace("{settings}", json.dumps(SMALL | {"area": [64, 64]}))
        variables = os.environ | {"PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", code, "1"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout

    assert digest("1") == digest("2")


def test_episodes_without_a_seed_are_of_the_environments_generator() -> None:
    with closing(made()) as one, closing(made()) as other:
        one.reset(seed=1)
        other.reset(seed=2)
        assert (world(one) != world(other)).any()  # of SheepRL's the second episode is the same whatever the seed
        other.reset(seed=1)
        one.reset(seed=1)
        assert (world(one) == world(other)).all()


def test_a_state_put_into_another_environment_goes_on_exactly_over_an_episodes_end() -> None:
    with closing(made()) as one, closing(made()) as other:
        one.reset(seed=3)
        played(one, 120)
        state = capture(one)
        other.reset(seed=8)
        restore(other, state)
        before = played(one, 300, 1)
        assert before[1] and before == played(other, 300, 1)
        restore(other, state)  # a used one, and the state was not touched by what was played
        assert before == played(other, 300, 1)


def test_filming_changes_nothing() -> None:
    with closing(made()) as one, closing(made()) as other:
        for env in (one, other):
            env.reset(seed=5)
            env.unwrapped.game._step = 250  # night: its noise is drawn
        rng = np.random.default_rng(0)
        for _ in range(20):
            action = int(rng.integers(17))
            left, right = one.step(action)[0]["rgb"], other.step(action)[0]["rgb"]
            assert (left == right).all()
            assert one.unwrapped.render().shape == (256, 256, 3)


def test_sheeprls_wrapper_means_it() -> None:
    target = ["+env.wrapper._target_=sheeprl.envs.crafter.CrafterWrapper", "+env.wrapper.id=${env.id}"]
    keys = ["+env.wrapper.screen_size=${env.screen_size}", "+env.wrapper.seed=${seed}"]
    config, _ = compose(["exp=ppo", "env=crafter", "algo.cnn_keys.encoder=[rgb]", *target, *keys])
    assert (config.env.id, config.env.reward_as_observation) == ("crafter_reward", True)
    with closing(make(config.env)) as env:
        assert set(spec_of(env).obs) == {"rgb", "reward"}


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"env.wrapper.lngth=1: .* did you mean 'length'"):
        made(lngth=1)
    monkeypatch.delitem(sys.modules, "rlcore.envs.suites.crafter.game", raising=False)
    monkeypatch.setitem(sys.modules, "crafter", None)
    with pytest.raises(UserError, match=r"env.id=crafter_reward: .*crafter.* pip install -e '\.\[crafter\]'"):
        made()
