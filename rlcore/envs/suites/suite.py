"""The protocol of a suite: one file that says which ids there are, how they are made, vectorised, saved and judged."""

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

# Keys that SheepRL's files put into `env.wrapper` and that are decided elsewhere here.
DECIDED_ELSEWHERE = ("_target_", "_convert_", "id", "render_mode")


class OpaqueStateError(Exception):
    """An environment holds something whose state cannot be read; the text names it, as `LunarLander.world`."""


class Lanes(Protocol):
    """Code that steps B environments at once, each of whose lanes can be set and read by itself.

    A lane gives, bit for bit, what a single environment gives that is where the lane is. It knows no time limit and
    opens no episode: both are done around it. `put` and `take` copy all that the next step depends on, generators too.
    """

    def step(self, action: np.ndarray) -> tuple[np.ndarray | dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Take actions [B, ...] in the environment's own form; obs, reward [B], terminated [B].

        Observations are [B, ...], or key -> [B, ...] where those of a single environment are a dict.
        """
        ...

    def put(self, index: int, env: gymnasium.Env) -> None:
        """Let a lane go on where a single environment (its `unwrapped`) is."""
        ...

    def take(self, index: int, env: gymnasium.Env) -> None:
        """Let a single environment (its `unwrapped`) go on where a lane is."""
        ...

    def attributes(self, envs: Sequence[gymnasium.Env]) -> Mapping[str, np.ndarray | list[Any]] | None:
        """Attributes that `take` and resets change in single environments, for all lanes at once.

        Args:
            envs: the single environment of each lane (its `unwrapped`), which draws the starts of its episodes.

        Returns:
            Name -> arrays [B, ...], or a list of B values; all other attributes are the same in each lane. None if
            that is not known, or the suite has `engines`: then each lane is saved by itself, which takes 0.15 ms.
        """
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class Suite(Protocol):
    """A family of environments. Subclass it, override what differs, and `register` an object of it.

    Attributes:
        name: as `shepherd envs` prints it.
        extra: the extra of this project that installs it, "" where it is always there.
        requires: the module whose presence says that the extra is installed, "" where none is needed.
        packages: distributions whose versions decide what its environments do; of several names the first found.
        note: one line for the reader.
        targets: what SheepRL's files write as `env.wrapper._target_` where they mean this suite; nothing is imported.
        engines: attributes of its environments (as `AtariEnv.ale`) that `capture` saves, since nobody else can.
        decided: keys of `env.wrapper` that are no arguments, since they are decided elsewhere.
        tier: "boundary" where it is known that none of its environments can be saved or played again; "" = measured.
        tier_reason: why it is that tier.
        from_keys: arguments that it takes from keys of the env group, unless `env.wrapper` has them.
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
        """Every id that it has, whether it is installed or not."""
        ...

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """A bare environment, not yet reset; whatever it raises becomes a sentence.

        Args:
            env_id: one of `ids`.
            arguments: `env.wrapper` without what is decided elsewhere.
            render_mode: Gymnasium's; None to step without pictures.

        Returns:
            The environment; Gymnasium's wrappers around it are fine.
        """
        ...

    def source(self, env_id: str) -> Any:
        """The class or function that makes an id; the files of its package decide whether a card still holds."""
        ...

    def sources(self, env_id: str) -> Sequence[Any]:
        """All classes and functions that an id comes from."""
        return (self.source(env_id),)

    def has(self, env_id: str) -> bool:
        """Tell whether an id is one of the suite's `ids`."""
        return env_id in self.ids()

    def ids_to_try(self) -> Sequence[str]:
        """Ids that `shepherd envs` makes to see whether they can be; of a suite of many alike, some."""
        return self.ids()

    def is_listed(self) -> bool:
        """Tell whether `shepherd envs` lists the suite: it has ids, or an extra that would bring some."""
        return bool(self.extra or self.ids())

    def vector(self, env_id: str, arguments: Mapping[str, Any]) -> Callable[[int], Lanes] | None:
        """Code that steps B of them at once, by their number B; None where there is none that is exact."""
        return None

    def capture(self, env: gymnasium.Env) -> State:
        """The state of its `engines`, as nested dicts of arrays and JSON scalars; all else is saved by itself.

        An OpaqueStateError where it cannot be read now.
        """
        return {}

    def restore(self, env: gymnasium.Env, state: State) -> None:
        """Put the engines of an environment (its `unwrapped`) into a captured state."""
        assert not state, f"the suite {self.name} captures a state and has no restore"

    def evaluation(self, env_id: str, wrapper: Mapping[str, Any]) -> Mapping[str, Any]:
        """`env.wrapper` of evaluation episodes, from that of training: observations and actions stay the same.

        An episode that training ends with a lost life, say, goes on to the end of the game.
        """
        return wrapper

    def check(self, env_id: str, wrapper: Mapping[str, Any], together: int) -> None:
        """Refuse a run on `together` environments for reasons that making a single one does not find; a UserError."""

    def repeats(self, wrapper: Mapping[str, Any]) -> bool:
        """Tell whether environments repeat actions themselves, as `env.wrapper` tells them, so that nobody else may."""
        return "action_repeat" in self.from_keys.values()

    def room(self, env_id: str) -> int | None:
        """Number of further environments of the suite that there can be now; None = any number."""
        return None

    def trial(self, env_id: str) -> None:
        """Find out whether an id can be made here, a UserError where not; by default by making it."""
        open_env(self, env_id, {}).close()

    def parameters(self, env_id: str) -> list[str] | None:
        """Names of the arguments that an id takes; None where it takes any, or it cannot be found out here."""
        try:
            parameters = inspect.signature(self.source(env_id)).parameters.values()
        except Exception:  # `make` says what is wrong with the code behind the id
            return None
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return None
        return [p.name for p in parameters if p.name not in ("self", "render_mode")]

    def place(self, env_id: str) -> str:
        """Words with which the user got it, as messages begin."""
        return f"env.id={env_id}"


def is_installed(suite: Suite) -> bool:
    """Tell whether the package that a suite needs can be imported (found, not imported)."""
    try:
        return not suite.requires or importlib.util.find_spec(suite.requires) is not None
    except ValueError:  # a module that is there but was blocked: sys.modules[name] is None
        return False


def refuse_missing(suite: Suite, env_id: str) -> None:
    """Refuse, in a UserError with the command that installs it, a suite whose extra is not there."""
    if suite.extra and not is_installed(suite):
        raise UserError(
            f"{suite.place(env_id)}: the package for {suite.name} is not installed; "
            f"run: pip install -e '.[{suite.extra}]'"
        )


def open_env(suite: Suite, env_id: str, wrapper: Mapping[str, Any], render_mode: str | None = None) -> gymnasium.Env:
    """An environment of a suite, without wrappers of this project.

    Args:
        suite: whose.
        env_id: one of its ids.
        wrapper: `env.wrapper`.
        render_mode: Gymnasium's; None to step without pictures.

    Returns:
        The environment, not yet reset; its `unwrapped.spec` has the id.

    Raises:
        UserError: the suite's extra is missing (and named), or the arguments do not fit.
    """
    refuse_missing(suite, env_id)
    arguments = check_arguments(suite, env_id, wrapper)
    if render_mode == "rgb_array":
        headless_rendering()
    try:
        env = suite.make(env_id, arguments, render_mode)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise UserError(f"{suite.place(env_id)}: cannot be made here: {first_line(error)}") from None
    except UserError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        given = ", ".join(f"env.wrapper.{k}={v}" for k, v in arguments.items()) or "no arguments"
        raise UserError(f"{suite.place(env_id)} with {given}: cannot be made ({spell_error(error)})") from error
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
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
    """`env.wrapper` as arguments of an environment; a UserError for one that it is known not to take."""
    arguments = {key: value for key, value in wrapper.items() if key not in suite.decided}
    known = suite.parameters(env_id)
    for key in arguments:
        if known is not None and key not in known:
            hint = nearest(key, known) or f"; it takes {', '.join(known) or 'none'}"
            raise UserError(f"env.wrapper.{key}={arguments[key]}: {env_id} has no such argument{hint}")
    return arguments


def why_not(suite: Suite, env_id: str) -> str | None:
    """Reason an id cannot be made here, in its maker's words; None where it can. What it warns of is for who trains."""
    quiet = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            suite.trial(env_id)
    except UserError as error:
        return str(error).removeprefix(f"env.id={env_id}: ").removeprefix("cannot be made here: ")
    finally:
        logging.disable(quiet)
    return None
