"""Environments of the user's own: `env.wrapper._target_: my_package.MyEnv`, as SheepRL's files name them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

import gymnasium

from rlcore import plugins
from rlcore.envs.suites.suite import Suite
from rlcore.errors import UserError

KEY = "env.wrapper._target_"


class OwnClass(Suite):
    """A suite of one class or function, `target` of one of the plugins; ids are whatever the user calls it.

    A wrapper whose first argument is `env` gets the environment of Gymnasium's registry that `env.id` names.

    A UserError where its package is none of the plugins, or it makes no environment.
    """

    name = "your own class"
    decided = ("_target_", "_convert_", "_recursive_")

    def __init__(self, target: str) -> None:
        self.target, found = target, plugins.member(KEY, target)
        # No other function: a config from elsewhere would choose among all that a plugin has, `subprocess.run` maybe.
        if not (_is_env_class(found) or (inspect.isfunction(found) and _makes_env(found))):
            raise UserError(
                f"{KEY}={target}: this is no class of gymnasium.Env, nor a function of the plugin that is annotated as "
                "giving one (`-> gymnasium.Env`)"
            )
        self.own: Any = found

    def ids(self) -> tuple[str, ...]:
        """None that could be listed."""
        return ()

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """An object of the class, or what the function gives."""
        # What cannot be drawn need not know the argument.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        if _is_wrapper(self.own):
            return self.own(gymnasium.make(env_id, disable_env_checker=True, **drawn), **arguments)
        made = self.own(**{**arguments, **drawn})
        if not isinstance(made, gymnasium.Env):
            raise TypeError(f"it gave a {type(made).__name__}, no gymnasium.Env")
        return made

    def source(self, env_id: str) -> Any:
        """The class or function."""
        return self.own

    def parameters(self, env_id: str) -> None:
        """Unknown: it says itself what it does not take."""
        return

    def place(self, env_id: str) -> str:
        """The key that names it."""
        return f"{KEY}={self.target}"


def _is_env_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, gymnasium.Env)


def _is_wrapper(found: Any) -> bool:
    """Whether this is a wrapper that wants to be handed an environment, and does not make its own."""
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        return False
    return next(iter(inspect.signature(found).parameters), "") == "env"


def _makes_env(function: Any) -> bool:
    """Whether a function is a plugin's own and says that it gives an environment."""
    if not any(f"{function.__module__}.".startswith(f"{plugin}.") for plugin in plugins.list_named()):
        return False
    try:
        return _is_env_class(typing.get_origin(hint := typing.get_type_hints(function).get("return")) or hint)
    except (NameError, TypeError):
        return False
