"""Crafter: seeds, exact restore, and SheepRL's names for it."""

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

SMALL = {"area": [32, 32], "view": [5, 5], "length": 250}  # worlds that are generated in 0.2 s
PLAY_SCRIPT = """
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


def make_env(env_id: str = "crafter_reward", **wrapper: Any) -> Any:
    return make(EnvSettings(env_id, SMALL | wrapper))


def play_randomly(env: Any, steps: int, seed: int = 0) -> tuple[list[bytes], int]:
    """Time steps of random actions, including resets, and the number of finished episodes."""
    rng, found, ended = np.random.default_rng(seed), [], 0
    for _ in range(steps):
        obs, reward, *ends, _ = env.step(int(rng.integers(17)))
        found.append(obs["rgb"].tobytes() + np.float64(reward).tobytes() + bytes(ends))
        if any(ends):
            found.append(env.reset()[0]["rgb"].tobytes())
            ended += 1
    return found, ended


def new_world(env: Any) -> Any:
    """The map of a new episode."""
    env.reset()
    return env.unwrapped.game._world._mat_map.copy()


def test_crafter_spaces_and_episode_ends_match_sheeprl() -> None:
    with closing(make(EnvSettings("crafter_reward"))) as env:
        part = spec_of(env).obs["rgb"]
        assert (part.kind, part.shape, part.dtype) == ("image", (64, 64, 3), "uint8")
        assert spec_of(env).action.nvec == (17,)
    with closing(make_env(length=5)) as env:
        env.reset(seed=0)
        assert [env.step(0)[2:4] for _ in range(5)] == [(False, False)] * 4 + [(False, True)]
    with closing(make_env()) as env:
        env.reset(seed=0)
        env.unwrapped.game._player.health = 0
        assert env.step(0)[2:4] == (True, False)


def test_crafter_nonreward_plays_same_game_without_reward() -> None:
    with closing(make_env()) as one, closing(make_env("crafter_nonreward")) as other:
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


def test_crafter_is_deterministic_across_processes() -> None:
    """The original Crafter iterates over sets of objects, so two processes with one seed differ."""

    def digest(hashes: str) -> str:
        code = PLAY_SCRIPT.replace("{settings}", json.dumps(SMALL | {"area": [64, 64]}))
        variables = os.environ | {"PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", code, "1"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout

    assert digest("1") == digest("2")


def test_crafter_reset_without_seed_uses_own_generator() -> None:
    with closing(make_env()) as one, closing(make_env()) as other:
        one.reset(seed=1)
        other.reset(seed=2)
        # In SheepRL, the second episode is the same for every seed.
        assert (new_world(one) != new_world(other)).any()
        other.reset(seed=1)
        one.reset(seed=1)
        assert (new_world(one) == new_world(other)).all()


def test_crafter_restore_continues_exactly_across_episodes() -> None:
    with closing(make_env()) as one, closing(make_env()) as other:
        one.reset(seed=3)
        play_randomly(one, 120)
        state = capture(one)
        other.reset(seed=8)
        restore(other, state)
        before = play_randomly(one, 300, 1)
        assert before[1] and before == play_randomly(other, 300, 1)
        restore(other, state)  # once more: playing must not have changed `state`
        assert before == play_randomly(other, 300, 1)


def test_crafter_render_changes_no_state() -> None:
    with closing(make_env()) as one, closing(make_env()) as other:
        for env in (one, other):
            env.reset(seed=5)
            env.unwrapped.game._step = 250  # night, which is rendered with random noise
        rng = np.random.default_rng(0)
        for _ in range(20):
            action = int(rng.integers(17))
            left, right = one.step(action)[0]["rgb"], other.step(action)[0]["rgb"]
            assert (left == right).all()
            assert one.unwrapped.render().shape == (256, 256, 3)


def test_crafter_accepts_wrapper_target_of_sheeprl() -> None:
    target = ["+env.wrapper._target_=sheeprl.envs.crafter.CrafterWrapper", "+env.wrapper.id=${env.id}"]
    keys = ["+env.wrapper.screen_size=${env.screen_size}", "+env.wrapper.seed=${seed}"]
    config, _ = compose(["exp=ppo", "env=crafter", "algo.cnn_keys.encoder=[rgb]", *target, *keys])
    assert (config.env.id, config.env.reward_as_observation) == ("crafter_reward", True)
    with closing(make(config.env)) as env:
        assert set(spec_of(env).obs) == {"rgb", "reward"}


def test_crafter_names_unknown_argument_and_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"env.wrapper.lngth=1: .* did you mean 'length'"):
        make_env(lngth=1)
    monkeypatch.delitem(sys.modules, "rlcore.envs.suites.crafter.game", raising=False)
    monkeypatch.setitem(sys.modules, "crafter", None)
    with pytest.raises(UserError, match=r"env.id=crafter_reward: .*crafter.* pip install -e '\.\[crafter\]'"):
        make_env()
