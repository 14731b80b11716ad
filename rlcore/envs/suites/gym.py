"""The suites that come with Gymnasium (classic control, toy text, Box2D, MuJoCo), and the user's plugins."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rlcore.config.schema import nearest
from rlcore.errors import UserError, first_line

log = logging.getLogger(__name__)

# Keys that SheepRL's files put into `env.wrapper` and that are decided elsewhere here.
DECIDED_ELSEWHERE = ("_target_", "_convert_", "id", "render_mode")
MAKERS = ("gymnasium.make", "gym.make", "sheeprl.envs.wrappers.gym.make")
MAKE_ARGUMENTS = ("max_episode_steps",)  # gymnasium.make's own; all others go to the environment's class


@dataclass(frozen=True)
class Family:
    """Fixed facts about a suite.

    Attributes:
        name: as `shepherd envs` prints it.
        package: Gymnasium's module that holds its classes.
        extra: the extra of this project that installs it, "" when it is always there.
        requires: the module whose presence says that the extra is installed.
        note: one line for the reader.
    """

    name: str
    package: str
    extra: str
    requires: str
    note: str


FAMILIES = (
    Family("classic control", "gymnasium.envs.classic_control", "", "", "fast; state saved exactly"),
    Family("toy text", "gymnasium.envs.toy_text", "", "", "small discrete tasks; state saved exactly"),
    Family("box2d", "gymnasium.envs.box2d", "box2d", "Box2D", "resumed by replaying the open episode"),
    Family("mujoco", "gymnasium.envs.mujoco", "mujoco", "mujoco", "resumed by replaying the open episode"),
)


@dataclass(frozen=True)
class Suite:
    """One row of `shepherd envs`: `ids` can be made once the `extra` is `installed`; of those `refused`, why not."""

    name: str
    extra: str
    installed: bool
    ids: tuple[str, ...]
    note: str
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def suites() -> list[Suite]:
    """Every suite with its ids, each of which was made to see whether it can be; then those that plugins registered.

    Plugins must have been loaded before (`rlcore.plugins.load`).
    """
    rows = []
    for family in FAMILIES:
        ids = tuple(sorted(i for i, spec in gymnasium.registry.items() if _within(spec, family.package)))
        here = installed(family)
        refused = {i: why for i in ids if (why := _why_not(i)) is not None} if here else {}
        ids = tuple(i for i in ids if i not in refused)
        rows.append(Suite(family.name, family.extra, here, ids, family.note, refused))
    own = tuple(sorted(i for i, spec in gymnasium.registry.items() if not _entry(spec).startswith("gymnasium.")))
    if own:
        rows.append(Suite("plugins", "", True, own, "registered by your plugins"))
    return rows


def _why_not(env_id: str) -> str | None:
    """Why an id cannot be made here, in Gymnasium's words; None where it can. What it warns of is for who trains."""
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make_gym(env_id, {}, None).close()
    except UserError as error:
        return str(error).removeprefix(f"env.id={env_id}: ").removeprefix("cannot be made here: ")
    finally:
        logging.disable(quiet)
    return None


def family_of(env_id: str) -> Family | None:
    """The suite a registered id belongs to; None for an id from elsewhere."""
    spec = gymnasium.registry.get(env_id)
    return next((f for f in FAMILIES if spec is not None and _within(spec, f.package)), None)


def installed(family: Family) -> bool:
    """Whether the package that a suite needs can be imported (found, not imported)."""
    try:
        return not family.requires or importlib.util.find_spec(family.requires) is not None
    except ValueError:  # a module that is there but was blocked: sys.modules[name] is None
        return False


def living_ids() -> list[str]:
    """Every registered id but those that only say that they are gone (MuJoCo v2 and v3, Gym compatibility)."""
    return [
        env_id
        for env_id, spec in gymnasium.registry.items()
        if not (callable(spec.entry_point) and _entry(spec).startswith("gymnasium.envs:"))
    ]


def _entry(spec: EnvSpec) -> str:
    entry = spec.entry_point
    if isinstance(entry, str):
        return entry
    return f"{getattr(entry, '__module__', '')}:{getattr(entry, '__name__', '')}"


def _within(spec: EnvSpec, package: str) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith(f"{package}.")


def make_gym(env_id: str, wrapper: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
    """An environment of Gymnasium's registry, without wrappers of this project.

    Args:
        env_id: a registered id.
        wrapper: `env.wrapper`, the arguments of gymnasium.make.
        render_mode: Gymnasium's; None to step without pictures.

    Returns:
        The environment, not yet reset.

    Raises:
        UserError: a package is missing, or the arguments do not fit.
    """
    family = family_of(env_id)
    arguments = _arguments(env_id, wrapper)
    try:
        if family is not None and family.name == "mujoco":
            _prepare_mujoco(render_mode)
        # An environment that cannot be drawn need not know the argument.
        drawn = {} if render_mode is None else {"render_mode": render_mode}
        return gymnasium.make(env_id, disable_env_checker=True, **drawn, **arguments)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        if family is not None and family.extra and not installed(family):
            raise UserError(
                f"env.id={env_id}: the package for {family.name} is not installed; "
                f"run: pip install -e '.[{family.extra}]'"
            ) from None
        raise UserError(f"env.id={env_id}: cannot be made here: {first_line(error)}") from None
    except Exception as error:
        given = ", ".join(f"env.wrapper.{k}={v}" for k, v in arguments.items()) or "no arguments"
        raise UserError(
            f"env.id={env_id} with {given}: cannot be made ({type(error).__name__}: {first_line(error)})"
        ) from error


def _arguments(env_id: str, wrapper: Mapping[str, Any]) -> dict[str, Any]:
    """`env.wrapper` as arguments of gymnasium.make, checked by name where the environment's class lists its own."""
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
        # MuJoCo's classes hand **kwargs to a base class that refuses unknown ones itself, in gymnasium.make.
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
