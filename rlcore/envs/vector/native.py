"""Environments that compute all of their copies at once: the vectorised code that comes with some ids of Gymnasium.

Each lane's episodes are those of a single environment: it is drawn by one, from the lane's own seed and generator, and
put into the lane. So the choice of vector changes no episode's start, and no lane depends on another's end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rlcore.config.groups import EnvConfig
from rlcore.envs.exact.state import capture, restore
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.spaces import obs_bounds, spec_of
from rlcore.envs.suites.ids import known_id
from rlcore.envs.vector.episodic import EpisodeSeed, EpisodicVectorEnv, Rows
from rlcore.envs.wrappers import time_limit
from rlcore.errors import EnvironmentFault, UserError, first_line
from rlcore.types import State

KNOWN = (CartPoleVectorEnv,)  # whose lanes are set by `state` [..., B] and counted by `steps` [B]
FORBIDS = ("action_repeat", "mask_velocities", "num_stack", "reward_as_observation")


class NativeVectorEnv(EpisodicVectorEnv):
    """B lanes of one vectorised environment, in this process. Their state is always saved as a snapshot.

    Args:
        settings: of one environment; `refuse` has nothing against them.
        num_envs: B.
        episode_seed: seed of each episode.
    """

    def __init__(self, settings: EnvSettings, num_envs: int, episode_seed: EpisodeSeed) -> None:
        self._single = [make(settings) for _ in range(num_envs)]  # draw the starts of episodes
        first = self._single[0]
        arguments = {key: value for key, value in settings.wrapper.items() if key != "max_episode_steps"}
        limit = time_limit(first)
        endless = np.iinfo(np.int32).max  # its own count of steps
        maker = _maker(known_id(settings.id))
        assert maker is not None
        self._vector: Any = maker(num_envs, max_episode_steps=endless if limit is None else limit, **arguments)
        self._vector.reset(seed=0)  # makes its arrays; every lane is overwritten
        super().__init__(num_envs, spec_of(first), obs_bounds(first), episode_seed, "snapshot", False)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: Rows) -> list[int]:
        obs, reward, terminated, truncated = rows
        vector = self._vector
        if action is not None:
            try:
                obs["state"][:], reward[:], terminated[:], truncated[:], _ = vector.step(action)
            except Exception as error:
                raise EnvironmentFault(
                    f"the environments' step raised {type(error).__name__}: {first_line(error)}"
                ) from error
            vector.prev_done[:] = False  # else it would open the next episode by a generator that all lanes share
        for index, seed in seeds.items():
            single: Any = self._single[index]
            obs["state"][index] = single.reset(seed=seed)[0]["state"]
            vector.state[..., index], vector.steps[index] = single.unwrapped.state, 0
            reward[index], terminated[index], truncated[index] = 0.0, False, False
        return (terminated | truncated).nonzero()[0].tolist()

    def _capture(self) -> list[State]:
        vector = self._vector
        lanes = [{"state": vector.state[..., i].copy(), "steps": int(vector.steps[i])} for i in range(self.num_envs)]
        return [lane | {"env": capture(single)} for lane, single in zip(lanes, self._single, strict=True)]

    def _restore(self, states: list[State]) -> None:
        for index, state in enumerate(states):
            restore(self._single[index], state["env"])
            self._vector.state[..., index], self._vector.steps[index] = state["state"], state["steps"]

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        raise AssertionError("a snapshot is never replayed")

    def close(self) -> None:
        """Release the environments."""
        for single in self._single:
            single.close()
        self._vector.close()


def refuse(config: EnvConfig) -> None:
    """Refuse `env.vectorization=native` where there is no such code, or settings that it does not know.

    The UserError names the key and what to do.
    """
    settings, plain = EnvSettings.of(config), EnvSettings("")
    asked = "env.vectorization=native"
    if "_target_" in settings.wrapper or _maker(known_id(settings.id)) is None:
        have = ", ".join(sorted(env_id for env_id in gymnasium.registry if _maker(env_id) is not None))
        raise UserError(
            f"{asked}: {settings.id} has no vectorised code whose lanes can be seeded one by one; "
            f"{have} have, others take env.vectorization=single"
        )
    for key in FORBIDS:
        if getattr(settings, key) != getattr(plain, key):
            name = "actions_as_observation" if key == "num_stack" else key
            raise UserError(f"{asked}: not together with env.{name}, a wrapper of single environments; leave one out")
    if not config.sync_env:
        raise UserError(f"{asked}: all lanes are one computation in this process; set env.sync_env=true")


def _maker(env_id: str) -> Callable[..., Any] | None:
    """The class of a registered id's vectorised code, where it is one that can be seeded lane by lane."""
    entry = gymnasium.registry[env_id].vector_entry_point
    return next((known for known in KNOWN if entry in (known, f"{known.__module__}:{known.__name__}")), None)
