"""Environments and wrappers of the user, named by `env.wrapper._target_` as in SheepRL's files."""

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
    """Suite of one class or function of a plugin, `target`; it accepts any id.

    Raises UserError if the package of `target` is not a plugin, or if `target` does not make an environment.
    """

    name = "your own class"
    decided = ("_target_", "_convert_", "_recursive_")

    def __init__(self, target: str) -> None:
        self.target, found = target, plugins.member(KEY, target)
        # For safety no other function is accepted: a foreign config could name one that the plugin imports, for example
        # `subprocess.run`.
        if not (_is_env_class(found) or (inspect.isfunction(found) and _makes_env(found))):
            raise UserError(
                f"{KEY}={target}: must be a subclass of gymnasium.Env, or a function of the plugin with the return "
                "annotation `-> gymnasium.Env`"
            )
        self.own: Any = found

    @property
    def wraps(self) -> bool:
        """True if the class or function wraps an environment: its first argument is `env`."""
        if isinstance(self.own, type) and not issubclass(self.own, gymnasium.Wrapper):
            return False
        return next(iter(inspect.signature(self.own).parameters), "") == "env"

    def ids(self) -> tuple[str, ...]:
        """Return no ids, because any id is accepted."""
        return ()

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Call the class or function, and check that the result is an environment."""
        # The argument is omitted if nothing is rendered, because not every class accepts it.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        return _check_env(self.own(**{**arguments, **drawn}))

    def source(self, env_id: str) -> Any:
        """Return the class or function."""
        return self.own

    def parameters(self, env_id: str) -> None:
        """Return None: the call itself reports unknown arguments."""
        return

    def place(self, env_id: str) -> str:
        """Return the key that names the class or function."""
        return f"{KEY}={self.target}"


def _is_env_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, gymnasium.Env)


def _check_env(made: Any) -> gymnasium.Env:
    if not isinstance(made, gymnasium.Env):
        hint = f"; {COMPATIBLE}" if hasattr(made, "step") and hasattr(made, "reset") else ""
        raise TypeError(f"it returned a {type(made).__name__}, not a gymnasium.Env{hint}")
    return made


def _makes_env(function: Any) -> bool:
    """Return True if a function is defined in a plugin and annotated to return an environment."""
    if not any(f"{function.__module__}.".startswith(f"{plugin}.") for plugin in plugins.list_named()):
        return False
    try:
        return _is_env_class(typing.get_origin(hint := typing.get_type_hints(function).get("return")) or hint)
    except (NameError, TypeError):
        return False


class OwnWrapper(Suite):
    """Environments of a suite in a wrapper of the user.

    The wrapper gets the keys of `env.wrapper` that its signature names; the suite's environment gets the others.

    Args:
        own: the wrapper.
        inner: suite of the wrapped environments.

    Raises:
        UserError: An argument of the wrapper has the name of an argument that the suite takes from the env group.
    """

    def __init__(self, own: OwnClass, inner: Suite) -> None:
        self.own, self.inner, self.decided = own, inner, own.decided
        self.name, self.tier, self.tier_reason = inner.name, inner.tier, inner.tier_reason
        self.packages, self.engines, self.from_keys = inner.packages, inner.engines, inner.from_keys
        self.names = list(inspect.signature(own.own).parameters)[1:]
        for name in self.names:
            if name in inner.from_keys:
                raise UserError(
                    f"{KEY}={own.target}: its argument {name} would hide the argument of the suite {inner.name} that "
                    f"is set by env.{inner.from_keys[name]}; rename it"
                )

    def ids(self) -> Sequence[str]:
        """Return the ids of the suite."""
        return self.inner.ids()

    def has(self, env_id: str) -> bool:
        """Return True if the suite has an id."""
        return self.inner.has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Make the suite's environment and wrap it."""
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
                f"{KEY}={self.own.target} with {given}: cannot wrap {env_id} ({spell_error(error)})"
            ) from error

    def _others(self, wrapper: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of `env.wrapper` that belong to the suite."""
        return {key: value for key, value in wrapper.items() if key not in self.names and key not in self.decided}

    def parameters(self, env_id: str) -> None:
        """Return None: the suite checks its own arguments."""
        return

    def source(self, env_id: str) -> Any:
        """Return the wrapper."""
        return self.own.own

    def sources(self, env_id: str) -> Sequence[Any]:
        """Return the wrapper and the sources of the wrapped environment."""
        return (self.own.own, *self.inner.sources(env_id))

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `env.wrapper` with the suite's changes for evaluation."""
        return {**wrapper, **self.inner.evaluation(env_id, self._others(wrapper))}

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """Check the suite's keys with the suite."""
        self.inner.check(env_id, self._others(wrapper), together)

    def repeats(self, wrapper: Mapping[str, Any]) -> bool:
        """Return True if the suite's environments repeat actions themselves."""
        return self.inner.repeats(self._others(wrapper))

    def free_instances(self, env_id: str) -> int | None:
        """Return the suite's number of further environments."""
        return self.inner.free_instances(env_id)

    def place(self, env_id: str) -> str:
        """Return the key that names the wrapper."""
        return self.own.place(env_id)
