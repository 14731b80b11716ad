"""Environments stepped together, in this process or in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rlcore.envs.vector.episodic import EpisodeSeed, EpisodicVectorEnv, Rows
from rlcore.envs.vector.lane import Lane
from rlcore.envs.vector.watchdog import STEP_TIMEOUT, Overdue, Watchdog, first_limit
from rlcore.errors import EnvironmentLost
from rlcore.types import State

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # the config package imports torch, which a worker must not
    pass


class SerialVectorEnv(EpisodicVectorEnv):
    """Environments in this process, one after another: fastest where a step takes microseconds.

    Args:
        build: makes one environment.
        num_envs: B.
        episode_seed: (env index, episode index) -> seed of that episode; None = go on with the env's own generator.
        tier: how the state is saved.
        fresh_instance: a newly built environment for every episode.
        step_timeout: seconds for one step of all environments.

    Raises:
        EnvironmentFault: one does not come into being in time.
    """

    def __init__(
        self,
        build: Callable[[], gymnasium.Env],
        num_envs: int,
        episode_seed: EpisodeSeed,
        tier: str = "snapshot",
        fresh_instance: bool = False,
        step_timeout: float = STEP_TIMEOUT,
    ) -> None:
        self._watchdog = Watchdog(step_timeout)
        with self._watchdog.patience(first_limit(step_timeout)):
            self._lanes = [self._watchdog.call(partial(Lane, build, i, fresh_instance)) for i in range(num_envs)]
        super().__init__(num_envs, self._lanes[0].spec, self._lanes[0].bounds, episode_seed, tier, fresh_instance)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: Rows) -> None:
        if not self._builds(action, seeds):
            self._play(action, seeds, rows)
            return
        with self._watchdog.patience(first_limit(self._watchdog.limit)):
            self._play(action, seeds, rows)

    def _play(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: Rows) -> None:
        obs, reward, terminated, truncated = rows
        actions, index = None if action is None else env_actions(action), 0
        self._watchdog.calls += 1
        try:
            for index, lane in enumerate(self._lanes):
                if index in seeds or actions is None:
                    lane.reset(seeds[index], obs, index, index in self._rebuild)
                else:
                    reward[index], terminated[index], truncated[index] = lane.step(actions[index], obs, index)
        except Overdue:
            where = f"environment {index}, step {self._length[index]} of its episode"
            raise EnvironmentLost(f"{where}: {self._watchdog.sentence()}") from None
        finally:
            self._watchdog.calls += 1

    def _capture(self) -> list[State]:
        return [lane.capture() for lane in self._lanes]

    def _restore(self, states: list[State]) -> None:
        with self._watchdog.patience(first_limit(self._watchdog.limit)):
            for lane, state in zip(self._lanes, states, strict=True):
                self._watchdog.call(partial(lane.restore, state))

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], rows: Rows) -> None:
        for index, (seed, actions) in episodes.items():
            # Re-simulating may take as long as it took to play: each step may use its limit.
            with self._watchdog.patience(first_limit(self._watchdog.limit) + len(actions) * self._watchdog.limit):
                lane = self._lanes[index]
                self._watchdog.call(partial(lane.replay, seed, env_actions(actions), rows[0], index))

    def close(self) -> None:
        """Release the environments; one that does not let go in time is left as it is, and it is said."""
        for index, lane in enumerate(self._lanes):
            try:
                self._watchdog.call(lane.close)
            except EnvironmentLost as lost:
                log.warning("environment %d, close: %s", index, lost)
        self._watchdog.close()


def env_actions(action: np.ndarray) -> list[Any]:
    """[B, ...] as one action per environment: Python integers for Discrete, array rows for all others."""
    return action.tolist() if action.ndim == 1 else list(action)
