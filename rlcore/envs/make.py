"""One environment from the config, with every mistake of the user told in a sentence."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import TimeLimit

from rlcore.envs.suites.gym import ABSENT, family_of, removed
from rlcore.envs.wrappers import (
    ActionRepeat,
    ActionsAsObservation,
    FlatDictObservation,
    MaskVelocities,
    RewardAsObservation,
)
from rlcore.errors import UserError, nearest

if TYPE_CHECKING:  # the config package imports torch, which a worker must not
    from rlcore.config.groups import EnvConfig

log = logging.getLogger(__name__)

# Keys that SheepRL's files put into `env.wrapper` and that are decided elsewhere here.
DECIDED_ELSEWHERE = ("_target_", "_convert_", "id", "render_mode")
MAKERS = ("gymnasium.make", "gym.make", "sheeprl.envs.wrappers.gym.make")
JAX = ("phys2d", "tabular")  # registered by Gymnasium itself
MAKE_ARGUMENTS = ("max_episode_steps",)  # gymnasium.make's own; all others go to the environment's class


@dataclass(frozen=True)
class EnvSettings:
    """The part of the env group that makes one environment, as plain values that a worker process can be sent.

    Attributes:
        id: Gymnasium id.
        wrapper: arguments of gymnasium.make.
        action_repeat: environment steps per action.
        mask_velocities: zero the velocities.
        num_stack: past actions shown as `action_stack`; below 1 = none.
        noop: the action before the first.
        dilation: distance between the actions shown.
        reward_as_observation: the reward as key `reward`.
        max_episode_steps: cut episodes after so many actions, None = only where the id does.
    """

    id: str
    wrapper: dict[str, Any] = field(default_factory=dict)
    action_repeat: int = 1
    mask_velocities: bool = False
    num_stack: int = -1
    noop: Any = 0
    dilation: int = 1
    reward_as_observation: bool = False
    max_episode_steps: int | None = None

    @staticmethod
    def of(config: EnvConfig | EnvSettings) -> EnvSettings:
        """The settings in the user's env group (or settings as they are)."""
        if isinstance(config, EnvSettings):
            return config
        stack = config.actions_as_observation
        return EnvSettings(
            id=config.id,
            wrapper=dict(config.wrapper),
            action_repeat=config.action_repeat,
            mask_velocities=config.mask_velocities,
            num_stack=stack.num_stack,
            noop=list(stack.noop) if isinstance(stack.noop, (list, tuple)) else stack.noop,
            dilation=stack.dilation,
            reward_as_observation=config.reward_as_observation,
            max_episode_steps=config.max_episode_steps,
        )


def make(config: EnvConfig | EnvSettings, *, render_mode: str | None = None) -> gymnasium.Env:
    """One environment whose observations are a flat dict, wrapped as the config asks.

    Order (SheepRL's): action repeat, flat dict, masked velocities, `action_stack`, `reward`, time limit. The id's own
    time limit counts environment steps; `max_episode_steps` counts actions.

    Args:
        config: the env group, or settings taken from it.
        render_mode: Gymnasium's; None to step without pictures.

    Returns:
        The environment, not yet reset.

    Raises:
        UserError: unknown or removed id, missing package, or an option this environment cannot have.
    """
    settings = EnvSettings.of(config)
    env: gymnasium.Env = _make_bare(settings, render_mode)
    try:
        if settings.action_repeat > 1:
            env = ActionRepeat(env, settings.action_repeat)
        env = FlatDictObservation(env)
        if settings.mask_velocities:
            env = MaskVelocities(env)
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


def load_plugins() -> list[str]:
    """Import the modules named in SHEPHERD_PLUGINS, which register their ids with Gymnasium.

    Returns:
        Their names.

    Raises:
        UserError: one of them cannot be imported.
    """
    names = [n.strip() for n in os.environ.get("SHEPHERD_PLUGINS", "").split(",") if n.strip()]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"SHEPHERD_PLUGINS={name}: this module cannot be imported ({error})") from None
    return names


def known_id(env_id: str) -> str:
    """The registered id that `env.id` means.

    Args:
        env_id: as the user wrote it, perhaps with the name of a plugin module and a colon in front.

    Returns:
        The id as Gymnasium knows it.

    Raises:
        UserError: nothing of that name can be made; says what exists instead.
    """
    plugins = load_plugins()
    if ":" in env_id:
        module, _, env_id_only = env_id.partition(":")
        if module not in plugins:
            raise UserError(
                f"env.id={env_id}: a config may not import code; name the module in the environment variable "
                f"SHEPHERD_PLUGINS={module} and the id as env.id={env_id_only}"
            )
        env_id = env_id_only
    family = re.split(r"[/-]", env_id, maxsplit=1)[0].lower()
    if family in ABSENT and (env_id not in gymnasium.registry or family in JAX):
        raise UserError(f"env.id={env_id}: the {ABSENT[family]} suite is not there yet; `shepherd envs` lists what is")
    if env_id in gymnasium.registry and not removed(env_id):
        return env_id
    if removed(env_id) and not _versions(env_id):
        raise UserError(f"env.id={env_id}: needs the old Gym interface, which is not there; `shepherd envs` lists ids")
    if versions := _versions(env_id):
        raise UserError(f"env.id={env_id}: this version does not exist here; use {' or '.join(versions)}")
    known = [i for i in gymnasium.registry if not removed(i)]
    raise UserError(
        f"env.id={env_id}: no such environment{nearest(env_id, known)} "
        "(`shepherd envs` lists them; SHEPHERD_PLUGINS names modules that register others)"
    )


def _versions(env_id: str) -> list[str]:
    """Ids of the same name that can be made, newest first."""
    name = re.sub(r"-v\d+$", "", env_id)
    same = [i for i in gymnasium.registry if re.sub(r"-v\d+$", "", i) == name and i != env_id and not removed(i)]
    return sorted(same, key=lambda i: -int(i.rpartition("-v")[2]))


def _make_bare(settings: EnvSettings, render_mode: str | None) -> gymnasium.Env:
    env_id = known_id(settings.id)
    arguments = _arguments(env_id, settings.wrapper)
    family = family_of(env_id)
    try:
        if family is not None and family.name == "mujoco":
            _prepare_mujoco(render_mode)
        # An environment that cannot be drawn need not know the argument.
        drawn = {} if render_mode is None else {"render_mode": render_mode}
        return gymnasium.make(env_id, disable_env_checker=True, **drawn, **arguments)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        if family is not None and family.extra:
            raise UserError(
                f"env.id={env_id}: the package for {family.name} is not installed; "
                f"run: pip install -e '.[{family.extra}]'"
            ) from None
        raise UserError(f"env.id={env_id}: a package it needs is not installed ({_first_line(error)})") from None
    except Exception as error:
        given = ", ".join(f"env.wrapper.{k}={v}" for k, v in arguments.items()) or "no arguments"
        raise UserError(
            f"env.id={env_id} with {given}: cannot be made ({type(error).__name__}: {_first_line(error)})"
        ) from error


def _arguments(env_id: str, wrapper: Mapping[str, Any]) -> dict[str, Any]:
    """`env.wrapper` as arguments of gymnasium.make, checked by name where the class tells its names."""
    target = wrapper.get("_target_")
    if target is not None and target not in MAKERS:
        raise UserError(f"env.wrapper._target_={target}: this suite is not there yet; `shepherd envs` lists what is")
    arguments = {k: v for k, v in wrapper.items() if k not in DECIDED_ELSEWHERE}
    parameters = _parameters(env_id)
    known = (*MAKE_ARGUMENTS, *(parameters or ()))
    for key in arguments:
        if parameters is not None and key not in known:
            hint = nearest(key, known) or f"; it takes {', '.join(known)}"
            raise UserError(f"env.wrapper.{key}={arguments[key]}: {env_id} has no such argument{hint}")
    return arguments


def _parameters(env_id: str) -> list[str] | None:
    """Argument names of an environment's class; None when it takes any, or cannot be imported here."""
    entry = gymnasium.registry[env_id].entry_point
    try:
        creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
        parameters = inspect.signature(creator).parameters.values()
    except (ImportError, gymnasium.error.DependencyNotInstalled, TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        # MuJoCo's classes hand **kwargs to a base class that does not take unknown ones: gymnasium.make tells those.
        return None
    return [p.name for p in parameters if p.name not in ("self", "render_mode")]


def _prepare_mujoco(render_mode: str | None) -> None:
    """Send the engine's warnings to logging, each once, and let it draw off screen where there is no display."""
    mujoco: Any = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:  # its own way is to write MUJOCO_LOG.TXT into the working directory
        mujoco.set_mju_user_warning(_mujoco_warning)
    if render_mode is not None and not os.environ.get("MUJOCO_GL"):
        os.environ.pop("MUJOCO_GL", None)  # Gymnasium refuses an empty one
        if not os.environ.get("DISPLAY"):
            os.environ["MUJOCO_GL"] = "egl"


@functools.cache
def _mujoco_warning(text: str) -> None:
    log.warning("MuJoCo: %s", text)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
