"""The suites that come with Gymnasium (classic control, toy text, Box2D, MuJoCo), and ids that plugins registered."""

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

MAKE_ARGUMENTS = ("max_episode_steps",)  # gymnasium.make's own; all others go to the environment's class
ENDLESS = np.iinfo(np.int32).max
DRAWN = ("_np_random", "_np_random_seed")  # attributes of an environment that its resets change
PACKAGES = ("gymnasium.", "ale_py.", "minigrid.")  # whose ids are no plugin's


class GymnasiumSuite(Suite):
    """Ids of Gymnasium's registry whose classes lie in one of its packages."""

    targets = ("gymnasium.make", "gym.make", "sheeprl.envs.wrappers.gym.make")

    def __init__(
        self, name: str, package: str, extra: str = "", packages: Sequence[str] = (), requires: str = "", note: str = ""
    ) -> None:
        self.name, self.package, self.extra, self.packages = name, package, extra, packages
        self.requires, self.note = requires, note

    def ids(self) -> list[str]:
        """Ids whose class lies in the package, sorted; not those that only say that they are gone (MuJoCo v2, v3)."""
        return sorted(env_id for env_id in gymnasium.registry if self.has(env_id))

    def has(self, env_id: str) -> bool:
        """Tell whether an id's class lies in the package."""
        spec = gymnasium.registry.get(env_id)
        if spec is None or not isinstance(spec.entry_point, str):
            return False
        return entry(spec).replace(":", ".").startswith(self.package)  # module:Class, or package:Class

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """An environment of Gymnasium's registry."""
        # An environment that cannot be drawn need not know the argument.
        drawn = {} if render_mode is None else {"render_mode": render_mode}
        return gymnasium.make(env_id, disable_env_checker=True, **drawn, **arguments)

    def source(self, env_id: str) -> Any:
        """The class behind an id."""
        made_by = gymnasium.registry[env_id].entry_point
        return load_env_creator(made_by) if isinstance(made_by, str) else made_by

    def parameters(self, env_id: str) -> list[str] | None:
        """Names of gymnasium.make's own arguments and of the class's."""
        # MuJoCo's classes hand **kwargs to a base class that refuses unknown ones itself, in gymnasium.make.
        names = super().parameters(env_id)
        return None if names is None else [*MAKE_ARGUMENTS, *names]

    def vector(self, env_id: str, arguments: Mapping[str, Any]) -> Callable[[int], Lanes] | None:
        """The vectorised code of the id, where it is one that is known to be exact: that of CartPole."""
        known = f"{CartPoleVectorEnv.__module__}:{CartPoleVectorEnv.__name__}"
        if gymnasium.registry[env_id].vector_entry_point not in (CartPoleVectorEnv, known):
            return None
        own = {key: value for key, value in arguments.items() if key not in MAKE_ARGUMENTS}
        return lambda num_envs: CartPoleLanes(num_envs, own)


class MujocoSuite(GymnasiumSuite):
    """Gymnasium's robots."""

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """A robot; its engine writes to the log."""
        log_mujoco_warnings()
        return super().make(env_id, arguments, render_mode)


class ImportedSuite(GymnasiumSuite):
    """Ids that a package registers with Gymnasium when it is imported, which costs time: they are known by their form.

    Args:
        form: a regular expression that all of them, and no others, begin with.
        *others: the arguments of `GymnasiumSuite`, of which `requires` names the package.
    """

    def __init__(self, form: str, *others: Any) -> None:
        super().__init__(*others)
        self.form = form

    def ids(self) -> list[str]:
        """Ids that the package registers; none before it is installed."""
        if not is_installed(self):
            return []
        importlib.import_module(self.requires)
        return super().ids()

    def has(self, env_id: str) -> bool:
        """Tell whether the suite has an id; of a package that is not installed, whether the id has its form."""
        if re.match(self.form, env_id) is None:
            return False
        if not is_installed(self):
            return True
        importlib.import_module(self.requires)
        return super().has(env_id)

    def make(self, env_id: str, arguments: Mapping[str, Any], render_mode: str | None) -> gymnasium.Env:
        """An environment of the package; an ImportError where that is missing."""
        importlib.import_module(self.requires)
        return super().make(env_id, arguments, render_mode)


class RegisteredSuite(GymnasiumSuite):
    """Ids that plugins registered with Gymnasium."""

    def has(self, env_id: str) -> bool:
        """Return whether a user registered an id: with a class, or with the name of one of another package."""
        spec = gymnasium.registry.get(env_id)
        return spec is not None and (isinstance(spec.entry_point, type) or not entry(spec).startswith(PACKAGES))

    def ids_to_try(self) -> Sequence[str]:
        """None: each may be large."""
        return ()


class CartPoleLanes:
    """Gymnasium's vectorised CartPole; `arguments` are those of its class."""

    def __init__(self, num_envs: int, arguments: Mapping[str, Any]) -> None:
        self.vector: Any = CartPoleVectorEnv(num_envs, max_episode_steps=ENDLESS, **arguments)
        self.vector.reset(seed=0)  # makes its arrays; every lane is overwritten

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `Lanes` has it."""
        obs, reward, terminated, _, _ = self.vector.step(action)
        self.vector.prev_done[:] = False  # else it would open the next episode by a generator that all lanes share
        self.vector.steps[:] = 0
        return obs, reward + 0.0, terminated  # a single one says 0.0 where this says -0.0

    def put(self, index: int, env: gymnasium.Env) -> None:
        """As `Lanes` has it."""
        self.vector.state[:, index] = env.unwrapped.state  # pyright: ignore[reportAttributeAccessIssue]

    def take(self, index: int, env: gymnasium.Env) -> None:
        """As `Lanes` has it."""
        single: Any = env.unwrapped
        single.state, single.steps_beyond_terminated = self.vector.state[:, index].copy(), None

    def attributes(self, envs: Sequence[gymnasium.Env]) -> Mapping[str, np.ndarray | list[Any]]:
        """As `Lanes` has it."""
        drawn: dict[str, list[Any]] = {name: [vars(env)[name] for env in envs] for name in DRAWN}
        return {"state": self.vector.state.T.copy(), "steps_beyond_terminated": [None] * len(envs)} | drawn

    def close(self) -> None:
        """As `Lanes` has it."""
        self.vector.close()


def entry(spec: EnvSpec) -> str:
    """Module and name of what makes a registered id, "" where it has neither."""
    made_by = spec.entry_point
    if isinstance(made_by, str):
        return made_by
    return f"{getattr(made_by, '__module__', '')}:{getattr(made_by, '__name__', '')}"


GYMNASIUM = (
    GymnasiumSuite("classic control", "gymnasium.envs.classic_control.", note="fast; state saved exactly"),
    GymnasiumSuite("toy text", "gymnasium.envs.toy_text.", note="small discrete tasks; state saved exactly"),
    GymnasiumSuite(
        "box2d", "gymnasium.envs.box2d.", "box2d", ("box2d", "Box2D"), "Box2D", "resumed by replaying the open episode"
    ),
    MujocoSuite(
        "mujoco", "gymnasium.envs.mujoco.", "mujoco", ("mujoco",), "mujoco", "resumed by replaying the open episode"
    ),
)
REGISTERED = RegisteredSuite("plugins", "", note="registered by your plugins")
