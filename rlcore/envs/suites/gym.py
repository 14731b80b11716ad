"""Suites of Gymnasium's environments (classic control, toy text, Box2D, MuJoCo), and of ids registered by plugins."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rlcore.envs.suites.mujoco_warnings import log_mujoco_warnings
from rlcore.envs.suites.suite import Lanes, Suite, is_installed

MAKE_ARGUMENTS = ("max_episode_steps",)  # arguments of gymnasium.make itself, which passes all others to the class
ENDLESS = np.iinfo(np.int32).max
DRAWN = ("_np_random", "_np_random_seed")  # attributes of an environment that a reset changes
PACKAGES = ("gymnasium.", "ale_py.", "minigrid.")  # ids of classes in these packages belong to other suites


class GymnasiumSuite(Suite):
    """Suite of the ids in Gymnasium's registry whose environment class is in the package `package`."""

    targets = ("gymnasium.make", "gym.make", "sheeprl.envs.wrappers.gym.make")

    def __init__(
        self, name: str, package: str, extra: str = "", packages: Sequence[str] = (), requires: str = "", note: str = ""
    ) -> None:
        self.name, self.package, self.extra, self.packages = name, package, extra, packages
        self.requires, self.note = requires, note

    def ids(self) -> list[str]:
        """Return the sorted ids with a class in the package.

        Gymnasium's registry also has ids without such a class, which only raise an error (MuJoCo v2 and v3). They are
        left out.
        """
        return sorted(env_id for env_id in gymnasium.registry if self.has(env_id))

    def has(self, env_id: str) -> bool:
        """Return True if the class of an id is in the package."""
        spec = gymnasium.registry.get(env_id)
        if spec is None or not isinstance(spec.entry_point, str):
            return False
        return entry(spec).replace(":", ".").startswith(self.package)  # module:Class, or package:Class

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment with gymnasium.make."""
        # The argument is omitted if nothing is rendered, because not every class accepts it.
        drawn = {} if render_mode is None else {"render_mode": render_mode}
        return gymnasium.make(env_id, disable_env_checker=True, **drawn, **arguments)

    def source(self, env_id: str) -> Any:
        """Return the environment class of an id, or the function that creates its environment."""
        made_by = gymnasium.registry[env_id].entry_point
        return load_env_creator(made_by) if isinstance(made_by, str) else made_by

    def parameters(self, env_id: str) -> list[str] | None:
        """Return the names of the arguments of gymnasium.make and of the class."""
        # MuJoCo's classes pass **kwargs to a base class, so that unknown names raise an error only in gymnasium.make.
        names = super().parameters(env_id)
        return None if names is None else [*MAKE_ARGUMENTS, *names]

    def vector(self, env_id: str, arguments: Mapping[str, Any]) -> Callable[[int], Lanes] | None:
        """Return a function that creates vectorized code (`Lanes`) for a number of CartPole environments.

        Return None for other ids, because their vectorized code in Gymnasium is not known to be bit-identical to single
        environments.
        """
        known = f"{CartPoleVectorEnv.__module__}:{CartPoleVectorEnv.__name__}"
        if gymnasium.registry[env_id].vector_entry_point not in (CartPoleVectorEnv, known):
            return None
        own = {key: value for key, value in arguments.items() if key not in MAKE_ARGUMENTS}
        return lambda num_envs: CartPoleLanes(num_envs, own)


class MujocoSuite(GymnasiumSuite):
    """Suite of Gymnasium's MuJoCo robots."""

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create a robot environment, and redirect MuJoCo's warnings to the log."""
        log_mujoco_warnings()
        return super().make(env_id, arguments, render_mode)


class ImportedSuite(GymnasiumSuite):
    """Suite of ids that a package registers with Gymnasium when it is imported.

    Because the import is slow, the suite imports the package only for ids that match a regular expression.

    Args:
        form: regular expression that matches the beginning of every id of the suite, and of no other id.
        *others: the arguments of `GymnasiumSuite`. Its argument `requires` names the package.
    """

    def __init__(self, form: str, *others: Any) -> None:
        super().__init__(*others)
        self.form = form

    def ids(self) -> list[str]:
        """Return the ids that the package registers; an empty list if the package is not installed."""
        if not is_installed(self):
            return []
        importlib.import_module(self.requires)
        return super().ids()

    def has(self, env_id: str) -> bool:
        """Return True if the suite contains an environment with the id `env_id`.

        If the package is not installed, return True for every id that matches the regular expression of the suite.
        """
        if re.match(self.form, env_id) is None:
            return False
        if not is_installed(self):
            return True
        importlib.import_module(self.requires)
        return super().has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """Create an environment of the package; raise ImportError if the package is not installed."""
        importlib.import_module(self.requires)
        return super().make(env_id, arguments, render_mode)


class RegisteredSuite(GymnasiumSuite):
    """Suite of the ids that plugins register with Gymnasium."""

    def has(self, env_id: str) -> bool:
        """Return True if a plugin has registered the id.

        Ids of other suites are excluded: their entry point is in one of `PACKAGES`.
        """
        spec = gymnasium.registry.get(env_id)
        return spec is not None and (isinstance(spec.entry_point, type) or not entry(spec).startswith(PACKAGES))

    def ids_to_try(self) -> Sequence[str]:
        """Return no ids: a plugin's environment can be large, so none is created as a test."""
        return ()


class CartPoleLanes:
    """B CartPole environments that are computed at once by Gymnasium's CartPoleVectorEnv; implements `Lanes`.

    Args:
        num_envs: B.
        arguments: arguments of CartPoleVectorEnv.
    """

    def __init__(self, num_envs: int, arguments: Mapping[str, Any]) -> None:
        self.vector: Any = CartPoleVectorEnv(num_envs, max_episode_steps=ENDLESS, **arguments)
        self.vector.reset(seed=0)  # creates the arrays; `put` overwrites the state of every environment

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions [B]; return (obs [B, 4], reward [B], terminated [B])."""
        obs, reward, terminated, _, _ = self.vector.step(action)
        self.vector.prev_done[:] = False  # prevent the autoreset, which uses one generator for all environments
        self.vector.steps[:] = 0
        return obs, reward + 0.0, terminated  # + 0.0 converts -0.0 to 0.0, as single environments return

    def put(self, index: int, env: gymnasium.Env) -> None:
        """Copy the state of a single environment to the environment with this index."""
        self.vector.state[:, index] = env.unwrapped.state  # pyright: ignore[reportAttributeAccessIssue]

    def take(self, index: int, env: gymnasium.Env) -> None:
        """Copy the state of the environment with this index to a single environment."""
        single: Any = env.unwrapped
        single.state, single.steps_beyond_terminated = self.vector.state[:, index].copy(), None

    def attributes(self, envs: Sequence[gymnasium.Env]) -> Mapping[str, np.ndarray | list[Any]]:
        """Return attribute name -> values of all B environments (see `Lanes.attributes`).

        `envs` are the single environments, which have the random generators.
        """
        drawn: dict[str, list[Any]] = {name: [vars(env)[name] for env in envs] for name in DRAWN}
        return {"state": self.vector.state.T.copy(), "steps_beyond_terminated": [None] * len(envs)} | drawn

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()


def entry(spec: EnvSpec) -> str:
    """Return `module:name` of the entry point of a registered id; a part that is not known is an empty string."""
    made_by = spec.entry_point
    if isinstance(made_by, str):
        return made_by
    return f"{getattr(made_by, '__module__', '')}:{getattr(made_by, '__name__', '')}"


GYMNASIUM = (
    GymnasiumSuite("classic control", "gymnasium.envs.classic_control.", note="fast; state saved exactly"),
    GymnasiumSuite("toy text", "gymnasium.envs.toy_text.", note="small discrete tasks; state saved exactly"),
    GymnasiumSuite(
        "box2d",
        "gymnasium.envs.box2d.",
        "box2d",
        ("box2d", "Box2D"),
        "Box2D",
        "on resume, the unfinished episode is replayed",
    ),
    MujocoSuite(
        "mujoco",
        "gymnasium.envs.mujoco.",
        "mujoco",
        ("mujoco",),
        "mujoco",
        "on resume, the unfinished episode is replayed",
    ),
)
REGISTERED = RegisteredSuite("plugins", "", note="registered by your plugins")
