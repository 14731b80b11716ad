"""Atari: equality with Gymnasium's preprocessing, all games, and exact capture of the emulator."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import AtariPreprocessing, StickyAction

from rlcore.config.groups import EnvConfig
from rlcore.envs.exact.state import capture, restore
from rlcore.envs.make import EnvSettings, adapt_to_evaluation, make
from rlcore.envs.spaces import spec_of
from rlcore.envs.suites.atari import PREPROCESSING
from rlcore.envs.suites.registry import SUITES, suite_with
from rlcore.errors import UserError
from rlcore.spec import Window
from tests.soaking import always, heavy

pytestmark = heavy

pytest.importorskip("ale_py")

PONG = EnvSettings("PongNoFrameskip-v4", action_repeat=4, screen_size=84, grayscale=True, frame_stack=4)


def play_bytes(env: gymnasium.Env, steps: int, seed: int | None) -> list[bytes]:
    """The bytes of the time steps of random actions, including resets."""
    rng = np.random.default_rng(steps)
    found, over = [], seed is not None
    for _ in range(steps):
        if over:
            obs, reward, ends = env.reset(seed=seed)[0], 0.0, (False, False)
            seed = None
        else:
            obs, reward, *ends, _ = env.step(random_action(env, rng))
        over = any(ends)
        obs = obs["rgb"] if isinstance(obs, dict) else obs
        found.append(obs.tobytes() + np.float64(reward).tobytes() + bytes(map(int, ends)))
    return found


def random_action(env: gymnasium.Env, rng: np.random.Generator) -> Any:
    """One of four discrete actions, or a position of the joystick."""
    space = env.action_space
    return rng.uniform(space.low, space.high).astype(np.float32) if isinstance(space, Box) else int(rng.integers(4))


class Sticky(StickyAction):
    """Gymnasium's sticky actions, but from the first frame of an episode, as in the emulator: no-op is repeated."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start with a no-op as last action; Gymnasium's wrapper has none."""
        found = super().reset(**options)
        self.last_action = np.zeros(3, np.float32) if isinstance(self.action_space, Box) else 0
        return found


JOYSTICK = {"continuous": True}


@always
@pytest.mark.parametrize(
    ("env_id", "settings", "wrapper"),
    [
        ("BreakoutNoFrameskip-v4", {"action_repeat": 4, "screen_size": 84, "grayscale": True}, {}),
        ("ALE/Breakout-v5", {"action_repeat": 4, "screen_size": 64}, {"terminal_on_life_loss": True}),
        ("ALE/Breakout-v5", {"action_repeat": 1, "screen_size": 84, "grayscale": True}, {"noop_max": 0}),
        ("ALE/Breakout-v5", {"action_repeat": 2, "screen_size": 40}, {"scale_obs": True, "full_action_space": True}),
        ("ALE/Breakout-v5", {"action_repeat": 4, "screen_size": 40}, {"repeat_action_probability": 0.9, "noop_max": 0}),
        ("ALE/Pong-v5", {"action_repeat": 4, "screen_size": 40}, JOYSTICK),
        ("ALE/Pong-v5", {"action_repeat": 4, "screen_size": 40}, JOYSTICK | {"continuous_action_threshold": 0.2}),
        ("ALE/Pong-v5", {"action_repeat": 4, "screen_size": 40}, JOYSTICK | {"repeat_action_probability": 0.0}),
    ],
    ids=["gray", "colour", "one frame", "two frames", "stickier", "joystick", "low threshold", "not sticky"],
)
def test_step_matches_gymnasium_atari_preprocessing(
    env_id: str, settings: dict[str, Any], wrapper: dict[str, Any]
) -> None:
    keys = {"frame_skip": "action_repeat", "screen_size": "screen_size", "grayscale_obs": "grayscale"}
    theirs = {name: settings[key] for name, key in keys.items() if key in settings} | {"grayscale_newaxis": True}
    theirs = {"grayscale_obs": False, "noop_max": 0 if "continuous" in wrapper else 30} | theirs | wrapper
    own = {name: theirs.pop(name) for name in wrapper if name not in PREPROCESSING}
    stickiness = own.pop("repeat_action_probability", gymnasium.spec(env_id).kwargs["repeat_action_probability"])
    game = gymnasium.make(env_id, disable_env_checker=True, frameskip=1, repeat_action_probability=0.0, **own)
    if stickiness:
        # Gymnasium's wrapper also draws a random number for each no-op.
        theirs, wrapper = theirs | {"noop_max": 0}, wrapper | {"noop_max": 0}
        game = Sticky(game, stickiness)
    with (
        closing(make(EnvSettings(env_id, wrapper, **settings))) as env,
        closing(AtariPreprocessing(game, **theirs)) as g,
    ):
        assert env.observation_space["rgb"] == g.observation_space and env.action_space == g.action_space
        assert play_bytes(env, 700, 5) == play_bytes(g, 700, 5)


@pytest.mark.parametrize("stickiness", [0.0, 1.0])
def test_sticky_actions_match_emulator(stickiness: float) -> None:
    """With probability 0 or 1, the result does not depend on the random numbers of the emulator."""
    own = {"repeat_action_probability": stickiness}
    game = gymnasium.make("ALE/Breakout-v5", disable_env_checker=True, frameskip=1, **own)
    settings = EnvSettings("ALE/Breakout-v5", own, action_repeat=4, screen_size=84)
    with closing(make(settings)) as env, closing(AtariPreprocessing(game, grayscale_obs=False)) as g:
        assert play_bytes(env, 100, 5) == play_bytes(g, 100, 5)


def test_frame_stack_stores_single_frames() -> None:
    with closing(make(PONG)) as env:
        part = spec_of(env).obs["rgb"]
        assert (part.kind, part.shape, part.dtype, part.window) == ("image", (84, 84, 1), "uint8", Window(4, 1))
        assert env.reset(seed=0)[0]["rgb"].shape == (84, 84, 1)
    with closing(make(EnvSettings("ALE/Pong-v5", screen_size=None))) as env:
        assert spec_of(env).obs["rgb"].shape == (210, 160, 3)


def test_every_eighth_game_can_step() -> None:
    suite = suite_with("ALE/Pong-v5")
    assert suite is not None and len(suite.ids()) > 150 and "Pong-v4" not in suite.ids()
    for env_id in suite.ids()[::8]:
        with closing(make(EnvSettings(env_id, {"noop_max": 0}))) as env:
            obs, _ = env.reset()
            assert env.observation_space.contains(obs), env_id
            assert env.observation_space.contains(env.step(env.action_space.sample())[0]), env_id
    assert not any("NoFrameskip" in env_id for env_id in SUITES["plugins"].ids())


@pytest.mark.parametrize("env_id", ["ALE/Breakout-v5", "PongNoFrameskip-v4"])
def test_restore_continues_game_exactly(env_id: str) -> None:
    """Includes an episode end with its reset, and sticky actions, which depend on the action before."""
    settings = EnvSettings(env_id, {"terminal_on_life_loss": True}, action_repeat=4, screen_size=84, grayscale=True)
    with closing(make(settings)) as one, closing(make(settings)) as other:
        other.reset(seed=9)
        for moment in range(40):
            play_bytes(one, 10 + moment % 4, moment)
            restore(other, capture(one))
            steps = 400 if moment == 0 else 8
            assert play_bytes(one, steps, None) == play_bytes(other, steps, None), moment


def test_restore_keeps_frame_count_of_episode() -> None:
    settings = EnvSettings("PongNoFrameskip-v4", {"max_num_frames_per_episode": 400}, action_repeat=4)
    with closing(make(settings)) as one, closing(make(settings)) as other:
        play_bytes(one, 60, 1)
        other.reset(seed=2)
        restore(other, capture(one))
        left, right = ([env.step(0)[3] for _ in range(45)] for env in (one, other))
        assert left == right and any(left)


def test_adapt_to_evaluation_disables_terminal_on_life_loss() -> None:
    config = EnvConfig("ALE/Breakout-v5", wrapper={"terminal_on_life_loss": True, "noop_max": 1})
    assert adapt_to_evaluation(config).wrapper == {"terminal_on_life_loss": False, "noop_max": 1}


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ({"repeat_action_probability": 2}, "repeat_action_probability=2: must be a number from 0 to 1"),
        ({"repeat_action_probability": None}, "repeat_action_probability=None: must be a number from 0 to 1"),
        ({"continuous": True, "noop_max": 30}, "noop_max=30: must be 0 with continuous actions"),
    ],
)
def test_make_refuses_invalid_game_arguments(wrapper: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(EnvSettings("ALE/Pong-v5", wrapper))


@always
def test_make_names_unknown_argument_id_and_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"env.wrapper.nop_max=1: .* did you mean 'noop_max'"):
        make(EnvSettings("ALE/Pong-v5", {"nop_max": 1}))
    with pytest.raises(UserError, match="did you mean 'ALE/Pong-v5'"):
        make(EnvSettings("ALE/Pongg-v5"))
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"env.id=ALE/Pong-v5: .*atari.* pip install -e '\.\[atari\]'"):
        make(EnvSettings("ALE/Pong-v5"))


def test_make_suppresses_emulator_banner() -> None:
    # Only the first game of a process prints it.
    code = "from rlcore.envs.make import *; make(EnvSettings('ALE/Pong-v5')).close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
