"""Atari 2600 games: the Arcade Learning Environment under Gymnasium's preprocessing, as SheepRL sets it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

from rlcore.envs.suites.gym import MAKE_ARGUMENTS, ImportedSuite
from rlcore.types import State

PREPROCESSING = tuple(inspect.signature(AtariPreprocessing).parameters)[1:]
# Arguments of the emulator that preprocessing decides, or the id.
DECIDED = ("game", "obs_type", "frameskip", "sound_obs", *MAKE_ARGUMENTS)
SCREEN = (160, 210)  # width and height of its pictures


class Preprocessing(AtariPreprocessing):
    """Gymnasium's wrapper of one action a call: the same bits in three quarters of the time.

    Its own asks the environment for every frame, which then draws each, though of them all two at most are looked at.
    """

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give the emulator one action for `frame_skip` frames; the observation is the maximum of the last two."""
        game: Any = self.env.unwrapped
        if game.continuous:
            return super().step(action)  # pyright: ignore[reportReturnType]
        emulator, button = game.ale, game._action_set[action]
        draw = emulator.getScreenGrayscale if self.grayscale_obs else emulator.getScreenRGB
        total, terminated, truncated = 0.0, False, False
        for frame in range(self.frame_skip):
            total += emulator.act(button, 1.0)
            terminated, truncated = emulator.game_over(with_truncation=False), emulator.game_truncated()
            if self.terminal_on_life_loss:
                lives = emulator.lives()
                terminated = terminated or lives < self.lives
                self.lives = lives
            self.game_over = terminated
            if terminated or truncated:
                break
            if frame >= self.frame_skip - 2:
                draw(self.obs_buffer[self.frame_skip - 1 - frame])
        return self._get_obs(), total, terminated, truncated, game._get_info()


class AtariSuite(ImportedSuite):
    """All games that come with ale-py, as `ALE/Pong-v5` and, without sticky actions, as `PongNoFrameskip-v4`."""

    targets = ("gymnasium.wrappers.AtariPreprocessing",)
    engines = ("AtariEnv.ale", "AtariEnv._action_set")
    from_keys = {  # noqa: RUF012 - read only
        "frame_skip": "action_repeat",
        "screen_size": "screen_size",
        "grayscale_obs": "grayscale",
    }

    def __init__(self) -> None:
        note = "every game; state saved exactly; env=atari is Gymnasium's preprocessing"
        super().__init__(r"ALE/|\w+NoFrameskip-v\d", "atari", "ale_py.", "atari", ("ale-py",), "ale_py", note)

    def ids(self) -> list[str]:
        """Two of each game; those of version 0 are known too."""
        return [env_id for env_id in super().ids() if not env_id.endswith("-v0")]

    def ids_to_try(self) -> Sequence[str]:
        """The first id alone: the others differ from it by a file that lies in the package."""
        return self.ids()[:1]

    def parameters(self, env_id: str) -> list[str]:
        """Names of the arguments of the emulator and of the preprocessing."""
        return [*PREPROCESSING, *(name for name in super().parameters(env_id) or () if name not in DECIDED)]

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """A game, its observations as preprocessing makes them, with a dimension for their colours."""
        # OpenCV would have threads of its own, one a processor core, for pictures of some thousand pixels.
        importlib.import_module("cv2").setNumThreads(1)
        ale: Any = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # else the first one writes who made it
        own = {name: value for name, value in arguments.items() if name in PREPROCESSING}
        emulator = {name: value for name, value in arguments.items() if name not in PREPROCESSING}
        game = super().make(env_id, {**emulator, "frameskip": 1}, render_mode)
        own["screen_size"] = own.get("screen_size", 84) or SCREEN
        return Preprocessing(game, **{"grayscale_newaxis": True, **own})

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Episodes that a lost life does not end."""
        return {**wrapper, "terminal_on_life_loss": False} if "terminal_on_life_loss" in wrapper else wrapper

    def capture(self, env: gymnasium.Env) -> State:
        """The emulator's own copy of itself, its generator included: sticky actions are drawn from it."""
        game: Any = env
        return {"emulator": np.frombuffer(game.clone_state(include_rng=True).serialize(), np.uint8).copy()}

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Put the emulator where a copy was taken."""
        game: Any = env
        game.restore_state(importlib.import_module("ale_py").ALEState(state["emulator"].tobytes()))
