"""Interface of a suite, which is a family of environments: its ids, and code to create, save and evaluate them."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from rlcore.config.values import nearest
from rlcore.envs.suites.headless import headless_rendering
from rlcore.errors import UserError, first_line
from rlcore.types import State
from rlcore.user_code import is_failure, spell_error

# Keys of `env.wrapper` in SheepRL's files that are set by other keys in this project.
DECIDED_ELSEWHERE = ("_target_", "_convert_", "id", "render_mode")


BatchedFactory = Callable[..., Any]  # number of copies, device, arguments -> rlcore.envs.batched.env.BatchedEnv


class OpaqueStateError(Exception):
    """Error for an environment attribute that cannot be saved.

    The text of the error names the class and the attribute, for example `LunarLander.world`.
    """


class Lanes(Protocol):
    """Interface of vectorized code that computes B copies of an environment at once; each copy is called a lane.

    The results of a lane must be bit-identical to those of a single environment in the same state. The code must not
    apply time limits or reset lanes; the caller does both. `put` and `take` must copy everything that the next step
    depends on, including random generators.
    """

    def step(self, action: np.ndarray) -> tuple[np.ndarray | dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Take actions [B, ...] of the environment's action space; return (obs, reward [B], terminated [B]).

        `obs` is [B, ...], or key -> [B, ...] if a single environment returns a dict.
        """
        ...

    def put(self, index: int, env: gymnasium.Env) -> None:
        """Set the state of lane `index`, one of the B copies, to that of a single environment (its `unwrapped`)."""
        ...

    def take(self, index: int, env: gymnasium.Env) -> None:
        """Set the state of a single environment (its `unwrapped`) to that of lane `index`, one of the B copies."""
        ...

    def attributes(self, envs: Sequence[gymnasium.Env]) -> Mapping[str, np.ndarray | list[Any]] | None:
        """Return the values of all environment attributes that can differ between the copies.

        The method makes saving faster and is optional. Without it, `take` is called for each copy, and the attributes
        of the single environment are then saved, which takes 0.15 ms per copy.

        Args:
            envs: B single environments (their `unwrapped`), one per copy; each draws the initial states of the episodes
                of its copy.

        Returns:
            Attribute name of the single environment -> array [B, ...] or list of B values. These must be all attributes
            that `take` or a reset changes; other attributes must be equal in all copies. None if the attributes are not
            known, or if the suite has `engines`.
        """
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class Suite(Protocol):
    """Interface of a family of environments. Subclass it, override the methods that differ, and `register` an instance.

    Attributes:
        name: name of the suite in the table of `shepherd envs`.
        extra: name of the optional dependencies of this project (pip extra) that install the suite's packages; "" if
            the packages are always installed.
        requires: module whose presence shows that these packages are installed; "" if no module is needed.
        packages: possible names of the package that contains the game or physics engine. The environment card records
            the version of the first one that is installed.
        note: description of the suite in one line, for the table of `shepherd envs`.
        targets: values of `env.wrapper._target_` in SheepRL's config files that stand for this suite. The names are
            compared as text and not imported.
        engines: attributes of the environments, as `Class.name` (for example `AtariEnv.ale`), that `capture` saves.
        decided: keys of `env.wrapper` that are not passed to the environment, because other config keys have their
            values.
        tier: "boundary" if the environments can be neither saved nor replayed; unfinished episodes are then truncated
            at every scheduled checkpoint. "" if the environment card measures the method of exact resume.
        tier_reason: reason for the tier "boundary", for messages.
        from_keys: argument of the environment -> key of the config group `env` that sets the argument. A value of the
            argument in `env.wrapper` has priority.
    """

    name: str
    extra: str = ""
    requires: str = ""
    packages: Sequence[str] = ()
    note: str = ""
    targets: Sequence[str] = ()
    engines: Sequence[str] = ()
    decided: Sequence[str] = DECIDED_ELSEWHERE
    tier: str = ""
    tier_reason: str = ""
    from_keys: Mapping[str, str] = {}

    def ids(self) -> Sequence[str]:
        """Return the ids that `shepherd envs` lists. The list can be empty if the suite is not installed."""
        ...

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment without this project's wrappers. Exceptions are reported to the user as a UserError.

        Args:
            env_id: an id of the suite.
            arguments: `env.wrapper` without the keys in `decided`.
            render_mode: as in Gymnasium; None if nothing is rendered.

        Returns:
            The environment, not yet reset; it can be wrapped in wrappers of Gymnasium.
        """
        ...

    def source(self, env_id: str) -> Any:
        """Return the class or function that creates an id's environment.

        If code in the package of the class or function changes, the environment card of the id is measured again.
        """
        ...

    def sources(self, env_id: str) -> Sequence[Any]:
        """Return all classes and functions whose code defines an id's environment, for example class and wrapper."""
        return (self.source(env_id),)

    def has(self, env_id: str) -> bool:
        """Return True if the suite contains an environment with the id `env_id`."""
        return env_id in self.ids()

    def ids_to_try(self) -> Sequence[str]:
        """Return the ids that `shepherd envs` tests by creating an environment.

        If many ids are similar, for example because they use one package, a suite can return only some of them.
        """
        return self.ids()

    def is_listed(self) -> bool:
        """Return True if `shepherd envs` lists the suite, which is the case if it has ids or a pip extra."""
        return bool(self.extra or self.ids())

    def vector(self, env_id: str, arguments: Mapping[str, Any]) -> Callable[[int], Lanes] | None:
        """Return a function that creates vectorized code (`Lanes`) for a number of environments.

        Return None if there is no vectorized code for the id that is bit-identical to single environments.
        """
        return None

    def batched(self, env_id: str, arguments: Mapping[str, Any]) -> BatchedFactory | None:
        """Return a function (number of copies, device) -> batched environment, if an id is one; otherwise None.

        The result of the function is a `rlcore.envs.batched.env.BatchedEnv`.
        """
        return None

    def capture(self, env: gymnasium.Env) -> State:
        """Return the state of an environment's engines as dicts of arrays and JSON scalars.

        Engines are objects outside of plain Python, such as an emulator (class attribute `engines`). `env` is the
        `unwrapped` environment. All attributes except the engines are saved by `rlcore.envs.exact.state`.
        Raise OpaqueStateError if the state of an engine cannot be read at this time step.
        """
        return {}

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Restore the attributes `engines` of an environment (its `unwrapped`) from a state that `capture` returned."""
        assert not state, f"the suite {self.name} implements capture, but not restore"

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `env.wrapper` for evaluation episodes; observation and action spaces must be those of training.

        For example, an Atari episode that ends with a lost life in training continues to the end of the game in
        evaluation.
        """
        return wrapper

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """Raise UserError if `together` environments cannot run at the same time, for example for lack of engines."""

    def repeats(self, wrapper: Mapping[str, Any]) -> bool:
        """Return True if the environments implement action repeat; then no `ActionRepeat` wrapper is added."""
        return "action_repeat" in self.from_keys.values()

    def free_instances(self, env_id: str) -> int | None:
        """Return how many more environments of the suite can be created or stepped together; None: no limit."""
        return None

    def trial(self, env_id: str) -> None:
        """Raise UserError if an environment with this id cannot be created on this machine.

        The default implementation creates an environment and closes it.
        """
        open_env(self, env_id, {}).close()

    def parameters(self, env_id: str) -> list[str] | None:
        """Return the names of an environment's arguments; None if they are unknown, or if any name is accepted."""
        try:
            parameters = inspect.signature(self.source(env_id)).parameters.values()
        except Exception:  # `make` reports errors in the code of the id
            return None
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return [p.name for p in parameters if p.name not in ("self", "render_mode")]

    def place(self, env_id: str) -> str:
        """Return the config key and value that select the environment, as `env.id=…`; error messages start with it."""
        return f"env.id={env_id}"


def is_installed(suite: Suite) -> bool:
    """Return True if the package that a suite needs is installed; it is not imported."""
    try:
        return not suite.requires or importlib.util.find_spec(suite.requires) is not None
    except ValueError:  # the module is blocked: sys.modules[name] is None
        return False


def refuse_missing(suite: Suite, env_id: str) -> None:
    """Raise UserError, with the install command, if the package of a suite is not installed."""
    if suite.extra and not is_installed(suite):
        raise UserError(
            f"{suite.place(env_id)}: the package for {suite.name} is not installed; "
            f"run: pip install -e '.[{suite.extra}]'"
        )


def open_env(suite: Suite, env_id: str, wrapper: Mapping[str, Any], render_mode: str | None = None) -> gymnasium.Env:
    """Create an environment of a suite, without this project's wrappers.

    Args:
        suite: the suite.
        env_id: an id of the suite.
        wrapper: keys and values of the config group `env.wrapper`.
        render_mode: as in Gymnasium; None if nothing is rendered.

    Returns:
        The environment, not yet reset; its `unwrapped.spec` has the id.

    Raises:
        UserError: The suite's package is not installed, an argument is unknown, or the environment cannot be created.
    """
    refuse_missing(suite, env_id)
    arguments = check_arguments(suite, env_id, wrapper)
    if render_mode == "rgb_array":
        headless_rendering()
    try:
        env = suite.make(env_id, arguments, render_mode)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UserError(f"{suite.place(env_id)}: cannot be created on this machine: {first_line(error)}") from None
    except UserError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        given = ", ".join(f"env.wrapper.{k}={v}" for k, v in arguments.items()) or "no arguments"
        raise UserError(f"{suite.place(env_id)} with {given}: cannot be created ({spell_error(error)})") from error
    for name in ("observation_space", "action_space"):
        try:
            space = getattr(env, name, None)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise UserError(f"{suite.place(env_id)}: its attribute {name} raised {spell_error(error)}") from error
        if not isinstance(space, gymnasium.Space):
            found = textwrap.shorten(repr(space), 80)
            raise UserError(
                f"{suite.place(env_id)}: its {name} is {found}, not a space of gymnasium.spaces; "
                "set it in the class or its __init__"
            )
    if env.unwrapped.spec is None and suite.has(env_id):
        env.unwrapped.spec = GymnasiumSpec(env_id)
    return env


def check_arguments(suite: Suite, env_id: str, wrapper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `env.wrapper` that are passed to the environment as arguments.

    These are all keys that are not in `Suite.decided`. Raise UserError if the environment has no such argument.
    """
    arguments = {key: value for key, value in wrapper.items() if key not in suite.decided}
    known = suite.parameters(env_id)
    for key in arguments:
        if known is not None and key not in known:
            hint = nearest(key, known) or f"; its arguments are: {', '.join(known) or 'none'}"
            raise UserError(f"env.wrapper.{key}={arguments[key]}: {env_id} has no argument {key!r}{hint}")
    return arguments


def why_not(suite: Suite, env_id: str) -> str | None:
    """Return the reason why an environment with this id cannot be created on this machine, or None if it can.

    Warnings of the environment are suppressed.
    """
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suite.trial(env_id)
    except UserError as error:
        return str(error).removeprefix(f"env.id={env_id}: ").removeprefix("cannot be created on this machine: ")
    finally:
        logging.disable(quiet)
    return None
