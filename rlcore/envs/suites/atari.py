"""Atari 2600 games: the Arcade Learning Environment with Gymnasium's preprocessing and SheepRL's settings."""

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
# Arguments of the emulator that are set by the preprocessing or by the environment id.
DECIDED = ("game", "obs_type", "frameskip", "sound_obs", *MAKE_ARGUMENTS)
SCREEN = (160, 210)  # width and height of the emulator's images


class Preprocessing(AtariPreprocessing):
    """Preprocessing of Atari games: Gymnasium's AtariPreprocessing with sticky actions and with faster steps.

    Observations and rewards are bit-identical to those of Gymnasium's wrapper, but a step takes a quarter less time.
    Gymnasium's wrapper renders every frame, although an observation uses only the last two frames of a step. This
    wrapper renders only those two. Sticky actions (Machado et al., 2018, §5.2) are implemented in this wrapper instead
    of in the emulator, because the emulator's saved state does not include the previous action.

    Args:
        game: environment with one frame per step and without sticky actions.
        stickiness: probability that a frame repeats the action of the previous frame, instead of the action of the
            agent. The environment's random generator decides this for every frame.
        **others: arguments of Gymnasium's AtariPreprocessing.

    Attributes:
        button: number of the action of the last frame; 0 (no-op) at the start of an episode.
        strength: strength of the action of the last frame, for games with a paddle.
    """

    button, strength = 0, 1.0

    def __init__(self, game: gymnasium.Env, stickiness: float, **others: Any) -> None:
        super().__init__(game, **others)
        own = game.unwrapped
        # A function is not part of a saved state. States saved without this attribute can therefore be loaded.
        self.sticks = (lambda: bool(own.np_random.random() < stickiness)) if stickiness else (lambda: False)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the no-op counts as its previous action."""
        self.button, self.strength = 0, 1.0
        return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action for `frame_skip` frames; the observation is the pixelwise maximum of the last two frames."""
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
    """Convert a continuous action to the number of a discrete action and a strength (Farebrother & Castro, 2024).

    The continuous action has three elements: the radius and the angle of a joystick, and the fire button.
    """
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
    """Suite of all games of ale-py; each game has two ids.

    An id such as `ALE/Pong-v5` has sticky actions by default, and an id such as `PongNoFrameskip-v4` has none.
    """

    targets = ("gymnasium.wrappers.AtariPreprocessing",)
    engines = ("AtariEnv.ale", "AtariEnv._action_set")
    from_keys = {  # noqa: RUF012 - read only
        "frame_skip": "action_repeat",
        "screen_size": "screen_size",
        "grayscale_obs": "grayscale",
    }

    def __init__(self) -> None:
        note = "all games; state saved exactly; env=atari applies Gymnasium's preprocessing"
        super().__init__(r"ALE/|\w+NoFrameskip-v\d", "atari", "ale_py.", "atari", ("ale-py",), "ale_py", note)

    def ids(self) -> list[str]:
        """Return two ids for each game. Ids with version 0 can be created, but are not listed."""
        return [env_id for env_id in super().ids() if not env_id.endswith("-v0")]

    def ids_to_try(self) -> Sequence[str]:
        """Return the first id only, because all games use the same package and differ only in a data file."""
        return self.ids()[:1]

    def parameters(self, env_id: str) -> list[str]:
        """Return the names of the arguments of the emulator and of the preprocessing."""
        return [*PREPROCESSING, *(name for name in super().parameters(env_id) or () if name not in DECIDED)]

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create a game with preprocessed observations; gray images have a channel axis."""
        # By default OpenCV starts one thread per core, which is too many for images of some thousand pixels.
        importlib.import_module("cv2").setNumThreads(1)
        ale: Any = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)  # suppress the banner of the first game
        own = {name: value for name, value in arguments.items() if name in PREPROCESSING}
        emulator = {name: value for name, value in arguments.items() if name not in PREPROCESSING}
        usual = gymnasium.spec(env_id).kwargs.get("repeat_action_probability", 0.0)
        stickiness = emulator.pop("repeat_action_probability", usual)
        if not isinstance(stickiness, (int, float)) or not 0 <= stickiness <= 1:
            raise ValueError(f"repeat_action_probability={stickiness}: must be a number from 0 to 1")
        if emulator.get("continuous") and own.setdefault("noop_max", 0):
            raise ValueError(
                f"noop_max={own['noop_max']}: must be 0 with continuous actions, because none of them is a no-op; "
                "set env.wrapper.noop_max=0"
            )
        game = super().make(env_id, {**emulator, "frameskip": 1, "repeat_action_probability": 0.0}, render_mode)
        own["screen_size"] = own.get("screen_size", 84) or SCREEN
        return Preprocessing(game, stickiness, **{"grayscale_newaxis": True, **own})

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `env.wrapper` with `terminal_on_life_loss=false`, so that evaluation episodes end with the game."""
        return {**wrapper, "terminal_on_life_loss": False} if "terminal_on_life_loss" in wrapper else wrapper

    def capture(self, env: gymnasium.Env) -> State:
        """Return the emulator's serialized state, including its random generator, which some games use."""
        game: Any = env
        return {"emulator": np.frombuffer(game.clone_state(include_rng=True).serialize(), np.uint8).copy()}

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Restore the emulator's state."""
        game: Any = env
        game.restore_state(importlib.import_module("ale_py").ALEState(state["emulator"].tobytes()))
