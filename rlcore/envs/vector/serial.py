"""Vectorized environment that steps its environments one after another in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from rlcore.config.groups import RestartConfig
from rlcore.envs.exact.stacked import stack
from rlcore.envs.vector.episodic import ArrivalArrays, EpisodeSeed, EpisodicVectorEnv
from rlcore.envs.vector.single import SingleEnv
from rlcore.envs.vector.watchdog import STEP_TIMEOUT, StepTimeout, Watchdog, first_limit
from rlcore.errors import EnvironmentFault, EnvironmentLost
from rlcore.types import State

log = logging.getLogger(__name__)


class SerialVectorEnv(EpisodicVectorEnv):
    """Vectorized environment that steps B environments one after another in this process.

    If a step takes microseconds, this is faster than separate processes. `build` creates one environment.
    `step_timeout` is the time limit in seconds for one step of all B environments together. `restart` configures the
    restarts after failures. For the other arguments, see `EpisodicVectorEnv`.
    """

    def __init__(
        self,
        build: Callable[[], gymnasium.Env],
        num_envs: int,
        episode_seed: EpisodeSeed,
        tier: str = "snapshot",
        fresh_instance: bool = False,
        step_timeout: float = STEP_TIMEOUT,
        restart: RestartConfig | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        self._watchdog = Watchdog(step_timeout)
        with self._watchdog.limit_to(first_limit(step_timeout)):
            self._envs: list[SingleEnv] = [
                self._watchdog.call(partial(SingleEnv, build, i, fresh_instance, restart, info_keys=info_keys))
                for i in range(num_envs)
            ]
        first = self._envs[0]
        super().__init__(num_envs, first.spec, first.bounds, episode_seed, tier, fresh_instance, info_keys)
        if self._info is not None:
            for env, row in zip(self._envs, self._info.values, strict=True):
                env.info = row

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: ArrivalArrays) -> list[int]:
        restarts = self._envs[0].restarts  # all environments have the same limits
        may_restart = restarts.attempts > 0
        if not self._builds(action, seeds) and not (may_restart and seeds):
            ended = self._step_or_reset(action, seeds, rows)
        else:
            first = first_limit(self._watchdog.limit)
            with self._watchdog.limit_to(first + restarts.seconds(first)):
                ended = self._step_or_reset(action, seeds, rows)
        for index, env in enumerate(self._envs if may_restart else ()):
            if env.failures:
                self._note_failures(index, env.failures, cut=env.broken)
                env.failures = []
        return ended

    def _step_or_reset(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: ArrivalArrays) -> list[int]:
        obs, reward, terminated, truncated = rows
        actions, index, ended = None if action is None else env_actions(action), 0, []
        self._watchdog.calls += 1
        try:
            for index, env in enumerate(self._envs):
                if index in seeds or actions is None:
                    spare = self._spare_seed(index) if env.restarts.attempts else None
                    env.reset(seeds[index], obs, index, index in self._rebuild, spare)
                    continue
                reward[index], terminates, truncates = env.step(actions[index], obs, index)
                terminated[index], truncated[index] = terminates, truncates
                if terminates or truncates:
                    ended.append(index)
        except StepTimeout:
            where = f"environment {index}, step {self._episodes.length[index]} of its episode"
            raise EnvironmentLost(f"{where}: {self._watchdog.sentence()}") from None
        finally:
            self._watchdog.calls += 1
        return ended

    def _capture(self) -> State:
        return stack([env.capture() for env in self._envs])

    def _restore(self, states: list[State]) -> None:
        with self._watchdog.limit_to(first_limit(self._watchdog.limit)):
            for env, state in zip(self._envs, states, strict=True):
                self._watchdog.call(partial(env.restore, state))

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        for index, (seed, actions) in episodes.items():
            # A replay can take as long as the episode took: each step has its own limit.
            with self._watchdog.limit_to(first_limit(self._watchdog.limit) + len(actions) * self._watchdog.limit):
                self._watchdog.call(partial(self._envs[index].replay, seed, env_actions(actions), obs, index))

    def close(self) -> None:
        """Close the environments; log a warning for each one that hangs or raises an error."""
        for index, env in enumerate(self._envs):
            try:
                self._watchdog.call(env.close)
            except EnvironmentLost as lost:
                log.warning("environment %d, close: %s", index, lost)
            except EnvironmentFault as fault:
                log.warning("%s", fault)
        self._watchdog.close()


def env_actions(action: np.ndarray) -> list[Any]:
    """Split actions [B, ...] into one per environment: Python integers for Discrete, array rows for other spaces."""
    return action.tolist() if action.ndim == 1 else list(action)
