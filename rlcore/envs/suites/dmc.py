"""DeepMind Control suite (Tassa et al. 2018, arXiv:1801.00690): MuJoCo tasks with rewards in [0, 1] per step."""

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

FILM = (240, 320)  # height and width of the images of `render`
FREE = 1e9  # dm-control uses bounds this large for unbounded actions (domain lqr), which are not rescaled
FAST = {"shadow": False, "reflection": False}  # rendering flags with which an image takes an eighth of the time

# Domain -> tasks of dm-control 1.0; an id is `<domain>_<task>`.
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
    """Task of DeepMind Control as a Gymnasium environment: observation keys `rgb` and `state`, actions in [-1, 1].

    An episode terminates if the task's discount is 0. It is truncated at the task's time limit, which is 1,000 steps in
    most tasks.

    Args:
        domain_name: domain of the task.
        task_name: name of the task in the domain.
        from_pixels: add the camera image as key `rgb`, uint8. Rendering takes nine tenths of the time of a step. If
            `env.wrapper` does not set this argument, images are rendered only if `algo.cnn_keys` contains an image.
        from_vectors: add all observations of the task, concatenated, as key `state`, float32.
        height: height of the image in pixels.
        width: width of the image in pixels.
        camera_id: number of the camera in the task's MuJoCo model.
        task_kwargs: `task_kwargs` of `dm_control.suite.load`, for example a time limit.
        environment_kwargs: `environment_kwargs` of `dm_control.suite.load`, which configure the control loop.
        channels_first: if True, the image is [3, height, width]; otherwise [height, width, 3].
        visualize_reward: if True, the colors of the bodies in images depend on the reward.
        fast_rendering: render without antialiasing, shadows and reflections. The pixels differ, so do not use it for
            comparisons with published results.
        render_mode: None, or "rgb_array".

    Attributes:
        draws: if False, images are black. This saves time if an episode is replayed and its images are not needed.
        metadata: render modes and frame rate, as in Gymnasium.
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
            raise ValueError(
                "from_pixels=false and from_vectors=false: no observation remains; set one of them to true"
            )
        suite: Any = importlib.import_module("dm_control.suite")
        log_mujoco_warnings()
        task = {**(task_kwargs or {}), "random": 0}  # `reset` replaces the generator in every episode
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
        """Start an episode; if `seed` is None, the environment's random generator draws the seed of the task."""
        super().reset(seed=seed)
        own = seed if seed is not None else int(self.np_random.integers(2**31))
        self.task.task._random = np.random.RandomState(own)  # the task's generator; dm-control has no setter
        return self._obs(self.task.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one action in [-1, 1], which is rescaled to the task's bounds."""
        share = (np.asarray(action, np.float64) + 1) / 2
        now = self.task.step(self.low + share * (self.high - self.low))
        ends = bool(now.last() and now.discount == 0)
        return self._obs(now), float(now.reward or 0.0), ends, bool(now.last()) and not ends, {}

    def render(self) -> Any:
        """Return an image of the configured camera, [240, 320, 3] uint8."""
        return self._draw(*FILM)

    def close(self) -> None:
        """Close the engine and its renderer."""
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
    """Suite of dm-control's tasks.

    The id of a task is `<domain>_<task>`. In SheepRL's config files, the two names are `env.wrapper.domain_name` and
    `env.wrapper.task_name`.
    """

    name = "dmc"
    extra = "dmc"
    requires = "dm_control"
    packages = ("dm-control", "mujoco")
    note = "vectors, pixels or both; on resume, the unfinished episode is replayed"
    targets = ("sheeprl.envs.dmc.DMCWrapper",)
    decided = (*DECIDED_ELSEWHERE, "domain_name", "task_name", "seed", "_recursive_")
    from_keys: Mapping[str, str] = {"height": "screen_size", "width": "screen_size", "from_pixels": "image_key"}

    def ids(self) -> Sequence[str]:
        """Return all ids, `<domain>_<task>`."""
        return tuple(_PARTS)

    def ids_to_try(self) -> Sequence[str]:
        """Return one task, because all tasks use the same engine."""
        return ("cartpole_balance",)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create the task of an id."""
        headless_rendering()  # dm-control reads the environment variables when it is imported
        return DMC(*_PARTS[env_id], **arguments, render_mode=render_mode)

    def source(self, env_id: str) -> Any:
        """Return the environment class, which all tasks share."""
        return DMC


_PARTS = {f"{domain}_{task}": (domain, task) for domain, tasks in TASKS.items() for task in tasks.split()}
