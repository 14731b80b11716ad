"""Creation of one environment from the config: its suite creates the environment, then the wrappers are added."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rlcore.config.groups import EnvConfig, RestartConfig
from rlcore.config.values import plain, spell
from rlcore.envs.batched.parameters import for_evaluation
from rlcore.envs.drawing import DrawnImage, drawn_shape
from rlcore.envs.images import FrameStack, GrayChannel, ScreenSize
from rlcore.envs.spaces import is_plane, kind_of, obs_spaces, refuse_large_observations
from rlcore.envs.suites.ids import known_id
from rlcore.envs.suites.own import OwnWrapper
from rlcore.envs.suites.registry import own_class, suite_with
from rlcore.envs.suites.suite import Suite, open_env
from rlcore.envs.wrappers import (
    ActionMaskObservation,
    ActionRepeat,
    ActionsAsObservation,
    FlatDictObservation,
    MaskVelocities,
    NormalizeAction,
    RewardAsObservation,
    VectorAction,
    gives_masks,
)
from rlcore.errors import UserError


@dataclass(frozen=True)
class EnvSettings:
    """Settings of one environment: the values of the config group `env`, which can be sent to a worker process.

    Each field has the name of its key in `EnvConfig`. There are two exceptions: `num_stack`, `noop` and `dilation` are
    keys of the group `env.actions_as_observation`, and the field `restart` contains the group
    `env.restart_on_exception`.
    """

    id: str
    wrapper: dict[str, Any] = field(default_factory=dict)
    normalize_actions: bool = False
    action_repeat: int = 1
    mask_velocities: bool = False
    screen_size: int | None = 64
    grayscale: bool = False
    vector_key: str = "state"
    image_key: str | None = None
    frame_stack: int = 1
    frame_stack_dilation: int = 1
    num_stack: int = -1
    noop: Any = 0
    dilation: int = 1
    reward_as_observation: bool = False
    action_mask_from_info: bool = False
    max_episode_steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    endless: bool | None = None
    restart: RestartConfig = field(default_factory=RestartConfig)

    @staticmethod
    def of(config: EnvConfig | EnvSettings) -> EnvSettings:
        """Convert a config group `env` to `EnvSettings`; an argument of type `EnvSettings` is returned unchanged."""
        if isinstance(config, EnvSettings):
            return config
        stack = config.actions_as_observation
        return EnvSettings(
            id=config.id,
            wrapper=dict(config.wrapper),
            normalize_actions=config.normalize_actions,
            action_repeat=config.action_repeat,
            mask_velocities=config.mask_velocities,
            screen_size=config.screen_size,
            grayscale=config.grayscale,
            vector_key=config.vector_key or "state",
            image_key=config.image_key,
            frame_stack=config.frame_stack,
            frame_stack_dilation=config.frame_stack_dilation,
            num_stack=stack.num_stack,
            noop=list(stack.noop) if isinstance(stack.noop, (list, tuple)) else stack.noop,
            dilation=stack.dilation,
            reward_as_observation=config.reward_as_observation,
            action_mask_from_info=config.action_mask_from_info,
            max_episode_steps=config.max_episode_steps,
            config=plain(config.config),
            endless=config.endless,
            restart=config.restart_on_exception,
        )


def make(config: EnvConfig | EnvSettings, *, render_mode: str | None = None) -> gymnasium.Env:
    """Create one environment with the configured wrappers; its observations are a flat dict.

    The wrappers are added in SheepRL's order: normalized actions (before them, the conversion of composite actions),
    action repeat, flat dict, action mask (`action_mask`, from a method or from `info`), channel axis of gray images
    (only if the agent reads images), masked velocities, rendered image, size and color of images, frame stack, past
    actions (`action_stack`), last reward (`reward`), time limit.

    Two time limits can apply. The limit that is registered with the id counts steps of the environment.
    `env.max_episode_steps` counts actions of the agent; with action repeat, one action is several steps. No wrapper
    restarts an environment after a failure; `SingleEnv` does this.

    Args:
        config: config group `env`, or `EnvSettings` created from it.
        render_mode: as in Gymnasium; None if nothing is rendered.

    Returns:
        The environment, not yet reset.

    Raises:
        UserError: The id is unknown, a package is missing, or the environment does not support an option of the config.
    """
    settings = EnvSettings.of(config)
    suite, env_id = suite_for(settings)
    taken = {argument: getattr(settings, key) for argument, key in suite.from_keys.items()}
    wrapper = {**taken, **settings.wrapper}
    drawn = None if settings.image_key is None else drawn_shape(suite, env_id, wrapper, settings.image_key)
    env = open_env(suite, env_id, wrapper, render_mode if drawn is None else "rgb_array")
    try:
        if settings.config or settings.endless is not None:
            _set_task(env, settings)
        refuse_large_observations(env, settings.id)
        if isinstance(env.action_space, (spaces.Dict, spaces.Tuple)):
            env = VectorAction(env)
        if settings.normalize_actions:
            env = NormalizeAction(env)
        if settings.action_repeat > 1 and not suite.repeats(settings.wrapper):
            env = ActionRepeat(env, settings.action_repeat)
        seen = settings.image_key is not None
        image = kind_of("", env.observation_space) == "image" or (seen and is_plane(env.observation_space))
        env = FlatDictObservation(env, (settings.image_key or "rgb") if image else settings.vector_key)
        if settings.action_mask_from_info or gives_masks(env):
            env = ActionMaskObservation(env, settings.action_mask_from_info)
        if seen and any(map(is_plane, obs_spaces(env).values())):
            env = GrayChannel(env)
        if settings.mask_velocities:
            env = MaskVelocities(env, settings.vector_key)
        if drawn is not None and settings.image_key not in obs_spaces(env):
            env = DrawnImage(env, str(settings.image_key), drawn)
        if settings.screen_size is not None or settings.grayscale or settings.frame_stack > 1:
            env = _with_images(env, settings)
        if settings.num_stack > 0:
            env = ActionsAsObservation(env, settings.num_stack, settings.noop, settings.dilation)
        if settings.reward_as_observation:
            env = RewardAsObservation(env)
        if settings.max_episode_steps is not None:
            env = TimeLimit(env, settings.max_episode_steps)
    except UserError:
        env.close()
        raise
    return env


def _set_task(env: gymnasium.Env, settings: EnvSettings) -> None:
    """Set the parameters of a batched environment; raise UserError if the environment is not batched."""
    set_task = getattr(env.unwrapped, "set_task", None)
    if set_task is None:
        given = f"config.{next(iter(settings.config))}" if settings.config else f"endless={spell(settings.endless)}"
        raise UserError(
            f"env.{given}: has no effect because {settings.id} is not a batched environment; remove the key"
        )
    set_task(settings.config, settings.endless, settings.id)


def _with_images(env: gymnasium.Env, settings: EnvSettings) -> gymnasium.Env:
    """Add the wrappers of images, if the observations contain an image."""
    if not any(kind_of(key, space) == "image" for key, space in obs_spaces(env).items()):
        return env
    env = ScreenSize(env, settings.screen_size, settings.grayscale)
    return FrameStack(env, settings.frame_stack, settings.frame_stack_dilation) if settings.frame_stack > 1 else env


def suite_for(settings: EnvConfig | EnvSettings) -> tuple[Suite, str]:
    """Return the suite that creates the environment of these settings, and the environment's id in that suite.

    Raise UserError if no suite contains an environment with the id in the settings.
    """
    own = own_class(settings.wrapper)
    if own is not None and not own.wraps:
        return own, settings.id
    env_id = known_id(settings.id)
    suite = suite_with(env_id)
    assert suite is not None, env_id
    return (suite if own is None else OwnWrapper(own, suite)), env_id


def adapt_to_evaluation(config: EnvConfig, env_config: Mapping[str, Any] = MappingProxyType({})) -> EnvConfig:
    """Return the config group `env` for evaluation episodes.

    It is the group for training, except that the environment's suite can change `env.wrapper` (`Suite.evaluation`), and
    that `env_config`, the value of `evaluation.env_config`, sets parameters of a batched environment.
    """
    suite, env_id = suite_for(config)
    wrapper = dict(suite.evaluation(env_id, config.wrapper))
    return dataclasses.replace(config, wrapper=wrapper, config=for_evaluation(config.config, env_config))
