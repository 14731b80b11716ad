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
    """Gymnasium's wrapper of one action a call, with sticky actions: the same bits in three quarters of the time.

    Its own asks the environment for every frame, which then draws each, though of them all two at most are looked at.
    Stickiness (Machado et al., 2018, §5.2) is here and not in the emulator, whose copy of itself lacks the action
    that is to be repeated: a restored game would go on otherwise.

    Args:
        game: an environment of one frame a step, of which the emulator repeats no action.
        stickiness: probability that a frame gets the action of the frame before, drawn from the game's generator.
        **others: arguments of Gymnasium's wrapper.

    Attributes:
        button: the emulator's last action, by its number; at first none.
        strength: how far its paddle is turned with it.
    """

    button, strength = 0, 1.0

    def __init__(self, game: gymnasium.Env, stickiness: float, **others: Any) -> None:
        super().__init__(game, **others)
        own = game.unwrapped
        # A function is no state: of a run that was saved without it, it stays.
        self.sticks = (lambda: bool(own.np_random.random() < stickiness)) if stickiness else (lambda: False)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, of whose first frames no action is pressed."""
        self.button, self.strength = 0, 1.0
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Give the emulator one action for `frame_skip` frames; the observation is the maximum of the last two."""
        game: Any = self.env.unwrapped
        emulator = game.ale
        chosen = press_joystick(game, action) if game.continuous else (game._action_set[action].value, 1.0)
        draw = emulator.getScreenGrayscale if self.grayscale_obs else emulator.getScreenRGB
        total, terminated, truncated = 0.0, False, False
        for frame in range(self.frame_skip):
            if not self.sticks():
                self.button, self.strength = chosen
            total += emulator.act(self.button, self.strength)
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


def press_joystick(game: Any, action: np.ndarray) -> tuple[int, float]:
    """The button and the strength of a continuous action: radius, angle and fire (Farebrother & Castro, 2024)."""
    radius, angle, fire = action
    least = game.continuous_action_threshold
    across, along = radius * np.cos(angle), radius * np.sin(angle)
    button = game.map_action_idx(
        left_center_right=int(across > least) - int(across < -least),
        down_center_up=int(along > least) - int(along < -least),
        fire=bool(fire > least),
    )
    return button.value, float(radius)


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
        usual = gymnasium.spec(env_id).kwargs.get("repeat_action_probability", 0.0)
        stickiness = emulator.pop("repeat_action_probability", usual)
        if not isinstance(stickiness, (int, float)) or not 0 <= stickiness <= 1:
            raise ValueError(f"repeat_action_probability={stickiness}: a number from 0 to 1")
        if emulator.get("continuous") and own.setdefault("noop_max", 0):
            raise ValueError(f"noop_max={own['noop_max']}: 0 with continuous actions, among which is no nothing")
        game = super().make(env_id, {**emulator, "frameskip": 1, "repeat_action_probability": 0.0}, render_mode)
        own["screen_size"] = own.get("screen_size", 84) or SCREEN
        return Preprocessing(game, stickiness, **{"grayscale_newaxis": True, **own})

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Episodes that a lost life does not end."""
        return {**wrapper, "terminal_on_life_loss": False} if "terminal_on_life_loss" in wrapper else wrapper

    def capture(self, env: gymnasium.Env) -> State:
        """The emulator's own copy of itself, its generator included: some games draw from it."""
        game: Any = env
        return {"emulator": np.frombuffer(game.clone_state(include_rng=True).serialize(), np.uint8).copy()}

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Put the emulator where a copy was taken."""
        game: Any = env
        game.restore_state(importlib.import_module("ale_py").ALEState(state["emulator"].tobytes()))
