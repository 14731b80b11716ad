"""Gymnasium environment of one DIAMBRA game."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.config.values import nearest
from rlcore.envs.suites.diambra.engine import Engine
from rlcore.envs.suites.diambra.messages import (
    BOX,
    COMMON,
    ENV_DONE,
    EPISODE_DONE,
    GAME_DONE,
    P1,
    P2,
    RAM_STATES,
    ROUND_DONE,
    STAGE_DONE,
)
from rlcore.envs.suites.diambra.settings import Keys, check_game, env_settings, episode_settings
from rlcore.errors import UserError

FRAMES = 60  # frames of the game per second
GAME_STATES = {
    "round_done": ROUND_DONE,
    "stage_done": STAGE_DONE,
    "game_done": GAME_DONE,
    "episode_done": EPISODE_DONE,
    "env_done": ENV_DONE,
}


class Readout(NamedTuple):
    """Description of one number that is read from the game's memory and used as an observation.

    `category` and `number` identify the number in the engine's answers. `space` is the observation space, and `encode`
    converts the number to an observation.
    """

    category: int
    number: int
    space: spaces.Space[Any]
    encode: Callable[[int], np.ndarray]


class DiambraEnv(gymnasium.Env):
    """Game of DIAMBRA with one player; observations are a flat dict with SheepRL's keys.

    The key `frame` is the image, uint8 [h, w, c]. Every other key is a number, int32 (1,), unless `env.wrapper` asks
    for scaled values. With `action_space=DISCRETE`, the actions are the moves (0 is no move), followed by the attacks.
    An episode terminates when the engine reports the end of the episode.

    Args:
        game: the engine's id of the game.
        keys: settings that `read_keys` has read from `env.wrapper`.
        outfits: number of outfits (appearances of a character) in the game.
        engine: connection to the engine. It is closed when the environment is closed, or if this constructor raises an
            error.
        render_mode: None, or "rgb_array".

    Attributes:
        metadata: render modes and frame rate, as in Gymnasium.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES}  # noqa: RUF012 - Gymnasium's own form

    def __init__(self, game: str, keys: Keys, outfits: int, engine: Engine, render_mode: str | None = None) -> None:
        self.game, self.keys, self.engine, self.render_mode = game, keys, engine, render_mode
        self.metadata = {**self.metadata, "render_fps": FRAMES / (keys.step_ratio * keys.repeat_action)}
        self._open = True
        try:
            self.info = engine.start(env_settings(keys, game))
            check_game(keys, game, outfits, self.info)
            self.action_space = self._action_space()
            shape = self.info.frame_shape
            self.frame_shape = (shape.h, shape.w, shape.c)
            self.observation_space = self._observation_space()
        except BaseException:
            self.close()
            raise
        self._role = P1
        self._frame = np.zeros(self.frame_shape, np.uint8)
        self._actions: deque[np.ndarray] = deque(maxlen=keys.diambra_wrappers.stack_actions)  # oldest first

    # Spaces

    def _action_space(self) -> spaces.Space[Any]:
        actions = self.info.available_actions
        single = self.keys.diambra_wrappers.no_attack_buttons_combinations
        self._moves, attacks = actions.n_moves, actions.n_attacks_no_comb if single else actions.n_attacks
        if self.keys.action_space == "MULTI_DISCRETE":
            return spaces.MultiDiscrete([self._moves, attacks])
        return spaces.Discrete(self._moves + attacks - 1)  # "no move" and "no attack" are one action

    def _observation_space(self) -> spaces.Dict:
        wrappers = self.keys.diambra_wrappers
        self._bytes = not wrappers.scale or wrappers.exclude_image_scaling
        found: dict[str, spaces.Space[Any]] = {
            "frame": spaces.Box(0, 255, self.frame_shape, np.uint8)
            if self._bytes
            else spaces.Box(0, 1, self.frame_shape, np.float32)
        }
        self._readings: dict[str, Readout] = {}
        categories = self.info.ram_states_categories
        for category, prefix in zip((COMMON, P1, P2), self._prefixes(), strict=True):
            for number, state in sorted(categories[category].ram_states.items()):
                key = f"{prefix}{RAM_STATES.get(number, f'ram_{number}')}"
                self._readings[key] = reading = self._reading(category, number, state)
                found[key] = reading.space
        if wrappers.add_last_action:
            space = self.action_space
            nvec = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.array([space.n])  # pyright: ignore[reportAttributeAccessIssue]
            self._nvec = np.tile(nvec, wrappers.stack_actions)
            ones = int(self._nvec.sum())
            low, high = np.zeros(len(self._nvec), np.int32), (self._nvec - 1).astype(np.int32)
            found["action"] = spaces.MultiBinary(ones) if wrappers.scale else spaces.Box(low, high, dtype=np.int32)
        return spaces.Dict(self._filter_keys(found))

    def _prefixes(self) -> tuple[str, str, str]:
        """Return three prefixes of observation keys: for numbers of the game, the first and the second player."""
        return ("", "own_", "opp_") if self.keys.diambra_wrappers.role_relative else ("", "P1_", "P2_")

    def _reading(self, category: int, number: int, state: Any) -> Readout:
        wrappers, low, high = self.keys.diambra_wrappers, state.min, state.max
        if not wrappers.scale or (state.type != BOX and high <= 1 and not wrappers.process_discrete_binary):
            space = spaces.Box(low if state.type == BOX else 0, high, (1,), np.int32)
            return Readout(category, number, space, lambda value: np.array([value], np.int32))
        if state.type == BOX:
            space = spaces.Box(0, 1, (1,), np.float32)
            return Readout(category, number, space, lambda value: np.array([(value - low) / (high - low)], np.float32))
        return Readout(category, number, spaces.MultiBinary(high + 1), lambda value: one_hot([value], [high + 1]))

    def _filter_keys(self, found: Mapping[str, spaces.Space[Any]]) -> dict[str, spaces.Space[Any]]:
        asked = self.keys.diambra_wrappers.filter_keys
        for key in asked:
            if key not in found:
                hint = nearest(key, found) or f"; its observation keys are {', '.join(found)}"
                raise UserError(
                    f"env.wrapper.diambra_wrappers.filter_keys={key}: not an observation key of {self.game}{hint}"
                )
        self._readings = {key: reading for key, reading in self._readings.items() if not asked or key in asked}
        return {key: space for key, space in found.items() if not asked or key in (*asked, "frame")}

    # Playing

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; raise EngineError if the engine fails."""
        super().reset(seed=seed)
        most = self.keys.diambra_wrappers.no_op_max
        response = self._begin()
        for _ in range(int(self.np_random.integers(1, most + 1)) if most else 0):
            response = self.engine.step(0, 0)
            if self._is_over(response):
                response = self._begin()
        self._forget_actions()
        return self._obs(response), self._info(response)

    def _begin(self) -> Any:
        episode = episode_settings(self.keys, self.game, self.info, self.np_random)
        self._role = episode.player_settings[0].role
        return self.engine.reset(episode)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action `repeat_action` times, or until a round ends; raise EngineError if the engine fails."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not an action of {self.action_space}")
        flat = np.reshape(action, -1)
        move, attack = (int(part) for part in flat) if len(flat) == 2 else self._split(int(flat[0]))
        reward = 0.0
        for _ in range(self.keys.repeat_action):
            response = self.engine.step(move, attack)
            reward += response.reward
            over = self._is_over(response)
            if over or response.info.game_states[ROUND_DONE]:
                break
        self._actions.append(flat)
        ended = any(response.info.game_states[state] for state in (ROUND_DONE, STAGE_DONE, GAME_DONE))
        if ended and not over and self.keys.diambra_wrappers.stack_actions > 1:
            self._forget_actions()
        return self._obs(response), self._scale_reward(reward), over, False, self._info(response)

    def _split(self, action: int) -> tuple[int, int]:
        """Split an action of `action_space=DISCRETE` into a move and an attack; at least one of them is 0 (none)."""
        return (action, 0) if action < self._moves else (0, action - self._moves + 1)

    def _is_over(self, response: Any) -> bool:
        states = response.info.game_states
        return bool(states[EPISODE_DONE] or states[ENV_DONE])

    def _scale_reward(self, reward: float) -> float:
        wrappers = self.keys.diambra_wrappers
        if wrappers.normalize_reward:
            reward /= wrappers.normalization_factor * self._full_health()
        return float(np.sign(reward)) if wrappers.clip_reward else reward

    def _full_health(self) -> int:
        """Return the difference between the largest and the smallest possible health of the first player."""
        states = self.info.ram_states_categories[P1].ram_states
        first = min(number for number in states if "health" in RAM_STATES.get(number, ""))
        return states[first].max - states[first].min

    def _forget_actions(self) -> None:
        none = np.zeros(2 if self.keys.action_space == "MULTI_DISCRETE" else 1, np.int64)
        self._actions.extend([none] * self.keys.diambra_wrappers.stack_actions)

    # Observing

    def _obs(self, response: Any) -> dict[str, np.ndarray]:
        seen = response.observation
        self._frame = np.frombuffer(seen.frame, np.uint8).reshape(self.frame_shape).copy()
        obs: dict[str, np.ndarray] = {"frame": self._frame if self._bytes else self._frame.astype(np.float32) / 255}
        mirrored = self.keys.diambra_wrappers.role_relative and self._role == P2
        categories = {COMMON: COMMON, P1: P2 if mirrored else P1, P2: P1 if mirrored else P2}
        values = {key: seen.ram_states_categories[number].ram_states for key, number in categories.items()}
        for key, reading in self._readings.items():
            obs[key] = reading.encode(values[reading.category][reading.number])
        if "action" in self.observation_space.spaces:  # pyright: ignore[reportAttributeAccessIssue]
            last = np.concatenate(self._actions)
            scaled = self.keys.diambra_wrappers.scale
            obs["action"] = one_hot(last, self._nvec) if scaled else last.astype(np.int32)
        return obs

    def _info(self, response: Any) -> dict[str, Any]:
        return {name: bool(response.info.game_states[state]) for name, state in GAME_STATES.items()}

    def render(self) -> Any:
        """Return the last frame, [h, w, 3] uint8."""
        return np.broadcast_to(self._frame, (*self.frame_shape[:2], 3)).copy()

    def close(self) -> None:
        """Release the engine; further calls have no effect."""
        if self._open:
            self._open = False
            self.engine.close()


def one_hot(values: Any, sizes: Any) -> np.ndarray:
    """Return the concatenated one-hot encodings of several choices; raise ValueError if one is out of range."""
    rows = []
    for value, size in zip(values, sizes, strict=True):
        if not 0 <= value < size:
            raise ValueError(f"{value} is not one of {size} choices (0 to {size - 1})")
        rows.append(np.eye(1, size, int(value), dtype=np.int8)[0])
    return np.concatenate(rows)
