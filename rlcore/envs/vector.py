"""Environments stepped together, in this process or in processes of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rlcore import streams
from rlcore.envs.episodic import EpisodeSeed, EpisodicVectorEnv, Rows
from rlcore.envs.lane import Lane
from rlcore.envs.make import EnvSettings, make
from rlcore.envs.watchdog import STEP_TIMEOUT, Overdue, Watchdog, first_limit, step_limit
from rlcore.errors import EnvironmentLost
from rlcore.types import State

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # the config package imports torch, which a worker must not
    from rlcore.run.config import EnvConfig


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


def make_vector_env(
    config: EnvConfig | EnvSettings,
    *,
    num_envs: int,
    seed: int,
    rank: int = 0,
    purpose: str = "env",
    tier: str = "snapshot",
    fresh_instance: bool = False,
    offset: int = 0,
    episode_seed: EpisodeSeed | None = None,
) -> EpisodicVectorEnv:
    """B environments from the config; in processes of their own when `sync_env` is false.

    Args:
        config: the env group (or settings taken from it: then in this process).
        num_envs: B.
        seed: the run's.
        rank: of this process among those that train together.
        purpose: stream of the seeds, a key of `rlcore.streams.PURPOSES`.
        tier: from the environment card. "snapshot": one seed per environment; else one per episode.
        fresh_instance: from the environment card: a newly built environment for every episode.
        offset: index of the first environment in its stream.
        episode_seed: replaces the seeds above: (env index, episode index) -> seed.

    Returns:
        The environments, not yet reset.

    Raises:
        UserError: the environment cannot be made.
    """
    settings = EnvSettings.of(config)
    seeds = episode_seed or stream_seeds(seed, purpose, rank, offset, tier)
    limit = step_limit(config)
    if isinstance(config, EnvSettings) or config.sync_env:
        return SerialVectorEnv(lambda: make(settings), num_envs, seeds, tier, fresh_instance, limit)
    from rlcore.envs.subprocess import SubprocessVectorEnv

    return SubprocessVectorEnv(settings, num_envs, seeds, tier, fresh_instance, limit)


def stream_seeds(seed: int, purpose: str, rank: int, offset: int, tier: str) -> EpisodeSeed:
    """The seeds of a run's environments: one each for tier "snapshot", else one for each episode."""

    def episode_seed(env_index: int, episode_index: int) -> int | None:
        if tier != "snapshot":
            return streams.integer(seed, purpose, rank, offset + env_index, episode_index)
        return streams.integer(seed, purpose, rank, offset + env_index) if episode_index == 0 else None

    return episode_seed
