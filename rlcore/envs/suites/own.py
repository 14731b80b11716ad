"""Suites for environments and wrappers of the user, selected by `env.wrapper._target_` as in SheepRL's config files."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlcore import plugins
from rlcore.envs.gym_form import COMPATIBLE
from rlcore.envs.suites.batched import factory, is_batched, view
from rlcore.envs.suites.suite import BatchedFactory, Suite, open_env
from rlcore.errors import UserError
from rlcore.user_code import is_failure, spell_error

KEY = "env.wrapper._target_"
_given: dict[str, Any] = {}  # result of `give` -> class or function


def give(found: Any) -> str:
    """Make a class or function available to this process, although it is not part of a plugin.

    Args:
        found: subclass of BatchedEnv or gymnasium.Env, or a function or `functools.partial` that is called as
            `found(num_envs, device)` and returns a BatchedEnv.

    Returns:
        Value for `env.wrapper._target_` that stands for it in this process.
    """
    named = _source(found)
    base = f"{named.__module__}.{named.__qualname__}"
    number = 1
    while _given.setdefault(target := base if number == 1 else f"{base}-{number}", found) is not found:
        number += 1  # another class of this name, for example an earlier version in a notebook
    return target


def _source(found: Any) -> Any:
    return _source(found.func) if isinstance(found, functools.partial) else found


class OwnClass(Suite):
    """Suite for one environment class or function of the user; the suite accepts any id.

    `target` is the dotted name of the class or function, the value of `env.wrapper._target_`. Raises UserError if the
    package of `target` is not a plugin, or if `target` is neither a class of environments nor a function that returns
    one.
    """

    name = "your own class"
    decided = ("_target_", "_convert_", "_recursive_")

    def __init__(self, target: str) -> None:
        self.target, given = target, _given.get(target)
        found: Any = plugins.member(KEY, target) if given is None else given
        self.is_batched = is_batched(found) or (given is not None and not _is_env_class(given))
        # Other functions are not accepted, for safety: a config from somebody else could name a function that the
        # plugin imports, for example `subprocess.run`.
        if not (_is_env_class(found) or self.is_batched or (inspect.isfunction(found) and _makes_env(found))):
            raise UserError(
                f"{KEY}={target}: must be a subclass of gymnasium.Env or BatchedEnv, or a function of the plugin with "
                "the return annotation `-> gymnasium.Env`"
            )
        self.own: Any = found

    @property
    def wraps(self) -> bool:
        """True if the class or function wraps an environment, which is assumed if its first argument is `env`."""
        if isinstance(self.own, type) and not issubclass(self.own, gymnasium.Wrapper):
            return False
        return next(iter(inspect.signature(self.own).parameters), "") == "env"

    def ids(self) -> tuple[str, ...]:
        """Return no ids, because any id is accepted."""
        return ()

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Call the class or function, and check that the result is an environment."""
        if self.is_batched:
            return view(self.own, None, arguments)
        # The argument is omitted if nothing is rendered, because not every class accepts it.
        drawn: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        return _check_env(self.own(**{**arguments, **drawn}))

    def batched(self, env_id: str, arguments: Mapping[str, Any]) -> BatchedFactory | None:
        """Return a function (number of copies, device) -> environment if the user's class is a BatchedEnv."""
        return factory(self.own, arguments) if self.is_batched else None

    def free_instances(self, env_id: str) -> int | None:
        """Return the largest number of copies that the user's BatchedEnv supports; None if there is no limit."""
        return getattr(_source(self.own), "max_num_envs", None) if self.is_batched else None

    def source(self, env_id: str) -> Any:
        """Return the user's class or function that creates the environments."""
        return _source(self.own)

    def parameters(self, env_id: str) -> None:
        """Return None, so that argument names are not checked in advance; the call reports unknown names."""
        return

    def place(self, env_id: str) -> str:
        """Return the start of error messages: `env.wrapper._target_=<name of the class or function>`."""
        return f"{KEY}={self.target}"


def _is_env_class(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, gymnasium.Env)


def _check_env(made: Any) -> gymnasium.Env:
    if not isinstance(made, gymnasium.Env):
        hint = f"; {COMPATIBLE}" if hasattr(made, "step") and hasattr(made, "reset") else ""
        raise TypeError(f"it returned a {type(made).__name__}, but must return a gymnasium.Env{hint}")
    return made


def _makes_env(function: Any) -> bool:
    """Return True if a function is defined in a plugin and has the return annotation gymnasium.Env."""
    if not any(f"{function.__module__}.".startswith(f"{plugin}.") for plugin in plugins.list_named()):
        return False
    try:
        return _is_env_class(typing.get_origin(hint := typing.get_type_hints(function).get("return")) or hint)
    except (NameError, TypeError):
        return False


class OwnWrapper(Suite):
    """Suite that applies a wrapper class of the user to the environments of another suite.

    Keys of `env.wrapper` that are parameters of the wrapper class are passed to the wrapper. All other keys are passed
    to the wrapped environment.

    Args:
        own: the wrapper class.
        inner: suite of the wrapped environments.

    Raises:
        UserError: A parameter of the wrapper class has the name of an argument that the wrapped suite sets from a key
            of the config group `env` (`inner.from_keys`), for example `screen_size`.
    """

    def __init__(self, own: OwnClass, inner: Suite) -> None:
        self.own, self.inner, self.decided = own, inner, own.decided
        self.name, self.tier, self.tier_reason = inner.name, inner.tier, inner.tier_reason
        self.packages, self.engines, self.from_keys = inner.packages, inner.engines, inner.from_keys
        self.names = list(inspect.signature(own.own).parameters)[1:]
        for name in self.names:
            if name in inner.from_keys:
                raise UserError(
                    f"{KEY}={own.target}: its argument {name} has the same name as an argument of the suite "
                    f"{inner.name} that env.{inner.from_keys[name]} sets; rename {name} in your class or function"
                )

    def ids(self) -> Sequence[str]:
        """Return the ids of the wrapped suite."""
        return self.inner.ids()

    def has(self, env_id: str) -> bool:
        """Return True if the wrapped suite contains an environment with the id `env_id`."""
        return self.inner.has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment of the wrapped suite and wrap it."""
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
        """Return the keys of `env.wrapper` that are passed to the wrapped suite."""
        return {key: value for key, value in wrapper.items() if key not in self.names and key not in self.decided}

    def parameters(self, env_id: str) -> None:
        """Return None, so that argument names are not checked; the wrapped suite checks the names of its arguments."""
        return

    def source(self, env_id: str) -> Any:
        """Return the wrapper class."""
        return self.own.own

    def sources(self, env_id: str) -> Sequence[Any]:
        """Return the wrapper class, and the classes and functions of the wrapped environment."""
        return (self.own.own, *self.inner.sources(env_id))

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `env.wrapper` for evaluation episodes, with the changes that the wrapped suite makes to it."""
        return {**wrapper, **self.inner.evaluation(env_id, self._others(wrapper))}

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """Raise UserError if the wrapped suite cannot run `together` environments at the same time."""
        self.inner.check(env_id, self._others(wrapper), together)

    def repeats(self, wrapper: Mapping[str, Any]) -> bool:
        """Return True if the environments of the wrapped suite repeat actions themselves."""
        return self.inner.repeats(self._others(wrapper))

    def free_instances(self, env_id: str) -> int | None:
        """Return how many more environments of the wrapped suite can be created now; None if there is no limit."""
        return self.inner.free_instances(env_id)

    def place(self, env_id: str) -> str:
        """Return the start of error messages: `env.wrapper._target_=<name of the wrapper class>`."""
        return self.own.place(env_id)
