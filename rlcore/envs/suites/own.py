"""Environments and wrappers of the user's own: what `env.wrapper._target_` names, as in SheepRL's files."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlcore import plugins
from rlcore.envs.gym_form import COMPATIBLE
from rlcore.envs.suites.suite import Suite, open_env
from rlcore.errors import UserError
from rlcore.user_code import is_failure, spell_error

KEY = "env.wrapper._target_"


class OwnClass(Suite):
    """A suite of one class or function, `target` of one of the plugins; ids are whatever the user calls it.

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

    @property
    def wraps(self) -> bool:
        """True where the class or function wants to be handed an environment: its first argument is `env`."""
        if isinstance(self.own, type) and not issubclass(self.own, gymnasium.Wrapper):
            return False
        return next(iter(inspect.signature(self.own).parameters), "") == "env"

    def ids(self) -> tuple[str, ...]:
        """None that could be listed."""
        return ()

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """An object of the class, or what the function gives."""
        # What cannot be drawn need not know the argument.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        return _check_env(self.own(**{**arguments, **drawn}))

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


def _check_env(made: Any) -> gymnasium.Env:
    if not isinstance(made, gymnasium.Env):
        hint = f"; {COMPATIBLE}" if hasattr(made, "step") and hasattr(made, "reset") else ""
        raise TypeError(f"it gave a {type(made).__name__}, no gymnasium.Env{hint}")
    return made


def _makes_env(function: Any) -> bool:
    """Tell whether a function is a plugin's own and says that it gives an environment."""
    if not any(f"{function.__module__}.".startswith(f"{plugin}.") for plugin in plugins.list_named()):
        return False
    try:
        return _is_env_class(typing.get_origin(hint := typing.get_type_hints(function).get("return")) or hint)
    except (NameError, TypeError):
        return False


class OwnWrapper(Suite):
    """The environments of a suite in a wrapper of the user's own.

    Of the keys of `env.wrapper` the wrapper gets those that its signature names, the suite's environment all others.

    Args:
        own: the wrapper.
        inner: the suite whose environments it is put around.

    Raises:
        UserError: an argument of the wrapper has the name of one that the suite takes from a key of the env group.
    """

    def __init__(self, own: OwnClass, inner: Suite) -> None:
        self.own, self.inner, self.decided = own, inner, own.decided
        self.name, self.tier, self.tier_reason = inner.name, inner.tier, inner.tier_reason
        self.packages, self.engines, self.from_keys = inner.packages, inner.engines, inner.from_keys
        self.names = list(inspect.signature(own.own).parameters)[1:]
        for name in self.names:
            if name in inner.from_keys:
                raise UserError(
                    f"{KEY}={own.target}: its argument {name} would hide that of the suite {inner.name}, which is "
                    f"env.{inner.from_keys[name]}; rename it"
                )

    def ids(self) -> Sequence[str]:
        """Ids of the suite."""
        return self.inner.ids()

    def has(self, env_id: str) -> bool:
        """Ask the suite whether it has an id."""
        return self.inner.has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """The suite's environment, wrapped."""
        mine = {name: value for name, value in arguments.items() if name in self.names}
        env = open_env(self.inner, env_id, self._others(arguments), render_mode)
        try:
            return _check_env(self.own.own(env, **mine))
        except BaseException as error:
            if not is_failure(error):
                raise
            env.close()
            given = ", ".join(f"env.wrapper.{name}={value}" for name, value in mine.items()) or "no arguments"
            raise UserError(
                f"{KEY}={self.own.target} with {given}: cannot be put around {env_id} ({spell_error(error)})"
            ) from error

    def _others(self, wrapper: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of `env.wrapper` that are the suite's."""
        return {key: value for key, value in wrapper.items() if key not in self.names and key not in self.decided}

    def parameters(self, env_id: str) -> None:
        """Unknown here: the suite is asked with its own."""
        return

    def source(self, env_id: str) -> Any:
        """The wrapper."""
        return self.own.own

    def sources(self, env_id: str) -> Sequence[Any]:
        """The wrapper, and what makes that which it is put around."""
        return (self.own.own, *self.inner.sources(env_id))

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """The suite's, of its own keys."""
        return {**wrapper, **self.inner.evaluation(env_id, self._others(wrapper))}

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """The suite's, of its own keys."""
        self.inner.check(env_id, self._others(wrapper), together)

    def repeats(self, wrapper: Mapping[str, Any]) -> bool:
        """Ask the suite whether its environments repeat actions themselves."""
        return self.inner.repeats(self._others(wrapper))

    def room(self, env_id: str) -> int | None:
        """The suite's."""
        return self.inner.room(env_id)

    def place(self, env_id: str) -> str:
        """The key that names the wrapper."""
        return self.own.place(env_id)
