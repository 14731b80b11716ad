"""DeepMind Control suite (Tassa et al. 2018, arXiv:1801.00690): MuJoCo tasks with rewards from 0 to 1 a step."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlcore.envs.suites.headless import headless_rendering
from rlcore.envs.suites.mujoco_warnings import log_mujoco_warnings
from rlcore.envs.suites.suite import DECIDED_ELSEWHERE, Suite

FILM = (240, 320)  # height and width of what `render` draws
FREE = 1e9  # a bound as large is none (LQR's): such an action is taken as it is
FAST = {"shadow": False, "reflection": False}  # what a picture is drawn without, and takes an eighth of the time

# Domain -> its tasks, in dm-control 1.0; an id is the two with `_` between.
TASKS: Mapping[str, str] = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}


class DMC(gymnasium.Env):
    """One task as an environment of Gymnasium: keys `rgb` and `state`, actions from -1 to 1.

    It ends where the task's discount is 0, and is truncated after the task's own time (1,000 steps of most).

    Args:
        domain_name: of the task.
        task_name: within the domain.
        from_pixels: key `rgb`, uint8, what the camera sees, which takes nine tenths of the time to draw; where
            `env.wrapper` does not say, if `algo.cnn_keys` reads an image.
        from_vectors: key `state`, float32, all observations of the task one behind the other.
        height: of the picture, in pixels.
        width: likewise.
        camera_id: which camera.
        task_kwargs: arguments of the task.
        environment_kwargs: arguments of its environment.
        channels_first: the picture is [3, height, width]; else [height, width, 3].
        visualize_reward: the colours show the reward.
        fast_rendering: no smoothing of edges, shadows and reflections. Other pixels: not for published comparisons.
        render_mode: None, or "rgb_array".

    Attributes:
        draws: whether pictures are wanted now; where an episode is only played again, black will do.
        metadata: Gymnasium's: how it can be drawn.
    """

    draws: bool
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        domain_name: str,
        task_name: str,
        from_pixels: bool | str | None = None,
        from_vectors: bool = True,
        height: int | None = 84,
        width: int | None = 84,
        camera_id: int = 0,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
        channels_first: bool = True,
        visualize_reward: bool = False,
        fast_rendering: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if not (from_pixels or from_vectors):
            raise ValueError("from_pixels and from_vectors are both false: nothing could be observed")
        suite: Any = importlib.import_module("dm_control.suite")
        log_mujoco_warnings()
        task = {**(task_kwargs or {}), "random": 0}  # every episode has a generator of its own
        environment = dict(environment_kwargs or {})
        self.task: Any = suite.load(domain_name, task_name, task, environment, visualize_reward)
        self.from_pixels, self.from_vectors, self.channels_first = bool(from_pixels), from_vectors, channels_first
        self.height, self.width, self.camera_id = height or 84, width or 84, camera_id
        self.render_mode, self.draws, self.flags = render_mode, True, {**FAST} if fast_rendering else {}
        if fast_rendering:
            self.task.physics.model.vis.quality.offsamples = 0
        bounds = self.task.action_spec()
        free = bounds.maximum >= FREE
        self.low, self.high = np.where(free, -1.0, bounds.minimum), np.where(free, 1.0, bounds.maximum)
        self.action_space = spaces.Box(-1, 1, bounds.shape, np.float32)
        parts: dict[str, spaces.Space[Any]] = {}
        if from_pixels:
            size = (self.height, self.width)
            parts["rgb"] = spaces.Box(0, 255, (3, *size) if channels_first else (*size, 3), np.uint8)
        if from_vectors:
            count = sum(int(np.prod(part.shape)) for part in self.task.observation_spec().values())
            parts["state"] = spaces.Box(-np.inf, np.inf, (count,), np.float32)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Open an episode, whose start the seed decides; without one, this environment's own generator."""
        super().reset(seed=seed)
        own = seed if seed is not None else int(self.np_random.integers(2**31))
        self.task.task._random = np.random.RandomState(own)  # what the task draws from, which it only lets be read
        return self._obs(self.task.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action, from -1 to 1 within the task's bounds."""
        share = (np.asarray(action, np.float64) + 1) / 2
        now = self.task.step(self.low + share * (self.high - self.low))
        ends = bool(now.last() and now.discount == 0)
        return self._obs(now), float(now.reward or 0.0), ends, bool(now.last()) and not ends, {}

    def render(self) -> Any:
        """A picture [240, 320, 3] uint8 of the task's camera."""
        return self._draw(*FILM)

    def close(self) -> None:
        """Release the engine and what it draws with."""
        self.task.close()

    def _obs(self, now: Any) -> dict[str, np.ndarray]:
        obs: dict[str, np.ndarray] = {}
        if self.from_pixels:
            picture = self._draw(self.height, self.width)
            obs["rgb"] = np.ascontiguousarray(picture.transpose(2, 0, 1)) if self.channels_first else picture
        if self.from_vectors:
            parts = [np.ravel(part) for part in now.observation.values()]
            obs["state"] = np.concatenate(parts).astype(np.float32)
        return obs

    def _draw(self, height: int, width: int) -> np.ndarray:
        if not self.draws:
            return np.zeros((height, width, 3), np.uint8)
        return self.task.physics.render(height, width, self.camera_id, render_flag_overrides=self.flags)


class DMCSuite(Suite):
    """Tasks of dm-control by SheepRL's names: `env.wrapper.domain_name` and `task_name` make `env.id`."""

    name = "dmc"
    extra = "dmc"
    requires = "dm_control"
    packages = ("dm-control", "mujoco")
    note = "vectors, pixels or both; resumed by replaying the open episode"
    targets = ("sheeprl.envs.dmc.DMCWrapper",)
    decided = (*DECIDED_ELSEWHERE, "domain_name", "task_name", "seed", "_recursive_")
    from_keys: Mapping[str, str] = {"height": "screen_size", "width": "screen_size", "from_pixels": "image_key"}

    def ids(self) -> Sequence[str]:
        """Domain and task of each."""
        return tuple(_PARTS)

    def ids_to_try(self) -> Sequence[str]:
        """A single task: all of them have one engine."""
        return ("cartpole_balance",)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """The task of an id."""
        headless_rendering()  # read as dm-control is imported
        return DMC(*_PARTS[env_id], **arguments, render_mode=render_mode)

    def source(self, env_id: str) -> Any:
        """The class that all tasks have here."""
        return DMC


_PARTS = {f"{domain}_{task}": (domain, task) for domain, tasks in TASKS.items() for task in tasks.split()}
