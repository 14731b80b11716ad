"""Environment classes of the user's own: `env.wrapper._target_: my_package.MyEnv`, as SheepRL's files name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from rlcore import plugins
from rlcore.envs.suites.gym import MAKERS
from rlcore.errors import UserError, first_line

KEY = "env.wrapper._target_"
NO_ARGUMENTS = ("_target_", "_convert_", "_recursive_")


def own_class(wrapper: Mapping[str, Any]) -> type[gymnasium.Env] | None:
    """The class that `env.wrapper` names, of one of the plugins; None where Gymnasium is to make the environment.

    A UserError where its package is none of the plugins, or it is no class of gymnasium.Env.
    """
    target = wrapper.get("_target_")
    if target is None or target in MAKERS:
        return None
    found = plugins.member(KEY, str(target))
    # No function either: a config from elsewhere would choose among all that a plugin has, `subprocess.run` perhaps.
    if not (isinstance(found, type) and issubclass(found, gymnasium.Env)):
        raise UserError(f"{KEY}={target}: this is no class of gymnasium.Env")
    return found


def make_own(own: type[gymnasium.Env], wrapper: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
    """An environment of a user's own class; the other keys of `env.wrapper` are its arguments.

    A UserError where it cannot be made of them; `render_mode` None is to step without pictures.
    """
    arguments = {key: value for key, value in wrapper.items() if key not in NO_ARGUMENTS}
    # A class that cannot be drawn need not know the argument.
    drawn = {} if render_mode is None else {"render_mode": render_mode}
    try:
        return own(**(arguments | drawn))
    except Exception as error:
        given = ", ".join(f"env.wrapper.{key}={value}" for key, value in arguments.items()) or "no arguments"
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{KEY}={wrapper['_target_']} with {given}: cannot be made ({reason})") from error
