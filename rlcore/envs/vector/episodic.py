"""Base class of vectorized environments that step single environments: seeds, autoreset, saving and restoring."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlcore import streams
from rlcore.envs.episodes import EpisodeCounts, refuse_other_envs
from rlcore.envs.exact.stacked import unstack
from rlcore.envs.spaces import Bounds
from rlcore.envs.vector.action_log import ActionLog
from rlcore.envs.vector.info_values import InfoStatistics
from rlcore.envs.vector.value_checks import ObservationChecks
from rlcore.errors import RunError
from rlcore.protocols import VectorEnv
from rlcore.spec import EnvSpec
from rlcore.types import Episodes, State, TimeStep

log = logging.getLogger(__name__)

FORMAT = 2  # of state_dict
TIERS = {  # tier (method by which `state_dict` saves an unfinished episode) -> description
    "snapshot": "the state is saved and restored",
    "replay": "the open episode is replayed from its seed and actions",
    "boundary": "the open episode is truncated at every scheduled checkpoint, in resumed and uninterrupted runs alike",
}
# output arrays: obs, reward [B] float64, terminated, truncated
ArrivalArrays = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray]

EpisodeSeed = Callable[[int, int], int | None]
"""(env index, episode index) -> seed of the episode; None = continue with the environment's own generator."""


class EpisodicVectorEnv(VectorEnv):
    """Base class of vectorized environments, which step B environments together.

    If an episode of an environment has ended, the next call of `step` resets this environment (autoreset). Subclasses
    define in which process the environments run. Every `TimeStep` has new arrays that are not changed later, unless the
    caller passes arrays to `step`.

    Args:
        num_envs: B.
        spec: spec of one environment.
        bounds: observation key -> (lower bound, upper bound); values outside the bounds are counted.
        episode_seed: function (env index, episode index) -> seed of the episode.
        tier: method by which `state_dict` saves unfinished episodes: "snapshot", "replay" or "boundary" (see `TIERS`).
        fresh_instance: if True, a new environment is built for every episode.
        info_keys: value of `env.info_keys`; subclasses write the values of each step to `_info.values`.
    """

    def __init__(
        self,
        num_envs: int,
        spec: EnvSpec,
        bounds: Bounds,
        episode_seed: EpisodeSeed,
        tier: str,
        fresh_instance: bool,
        info_keys: Sequence[str] = (),
    ) -> None:
        if tier not in TIERS:
            raise ValueError(f"tier must be one of {', '.join(TIERS)}, got {tier!r}")
        self.num_envs = num_envs
        self.spec = spec
        self.tier = tier
        self.fresh_instance = fresh_instance
        self._checks = ObservationChecks(spec, bounds)
        self._episode_seed = episode_seed
        self._layout = [(k, (num_envs, *part.shape), np.dtype(part.dtype)) for k, part in spec.obs.items()]
        self._action_dtype = np.dtype(spec.action.dtype)
        self._action_shape = (num_envs, *spec.action.shape)
        self._takes_numbers = not spec.action.shape
        self._episode_index = np.full(num_envs, -1, np.int64)
        self._reward = np.zeros(num_envs)  # rewards of the last step, float64
        self._episodes = EpisodeCounts(np.zeros(num_envs, np.int64), np.zeros(num_envs), _clear)
        self._info = InfoStatistics(info_keys, num_envs) if info_keys else None
        self._actions = ActionLog(num_envs, spec.action)
        self._pending: list[int] = []  # environments that are reset on the next step
        self._rebuild: set[int] = set()
        self._cut: set[int] = set()  # environments that failed in the last step and are restarted
        self._last: TimeStep | None = None

    @property
    def out_of_bounds(self) -> dict[str, int]:
        """Observation key -> number of values so far that were outside the bounds of their space."""
        return self._checks.outside

    # Methods of subclasses

    @abstractmethod
    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: ArrivalArrays) -> list[int]:
        """Reset the environments in `seeds`, step all other environments, and write the results to the arrays `rows`.

        If a step fails and the environment can be restarted, the implementation calls `_note_failures`, sets
        `truncated` to true for the episode, and writes no observation.

        Args:
            action: actions [B, ...]; None if all environments are reset.
            seeds: index of each environment to reset -> seed; None: continue the environment's random generator.
            rows: arrays of observations, rewards, terminated and truncated. A reset writes an observation only.

        Returns:
            Indices of the environments whose episode has ended, in ascending order.
        """

    @abstractmethod
    def _capture(self) -> State:
        """Return the states of all environments, stacked to arrays by `rlcore.envs.exact.stacked.stack`."""

    @abstractmethod
    def _restore(self, states: list[State]) -> None:
        """Restore the state of every environment."""

    @abstractmethod
    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        """Play unfinished episodes again, and write the last observation of each episode to `obs`.

        `episodes` is env index -> (seed, actions [n, ...]).
        """

    @abstractmethod
    def close(self) -> None:
        """Close the environments and end their processes."""

    # Stepping

    def reset(self) -> TimeStep:
        """Reset all environments; raise EnvironmentFault if one fails or returns an invalid value."""
        return self._next_time_step(None, list(range(self.num_envs)), None)

    def step(self, action: np.ndarray, into: TimeStep | None = None) -> TimeStep:
        """Take actions [B, ...] of the environments' action space; reset each environment whose episode has ended.

        Args:
            action: actions; the action of an environment that is reset is ignored.
            into: time step whose arrays are overwritten with the result; None: create new arrays.

        Returns:
            The time step.

        Raises:
            EnvironmentFault: An environment failed and cannot be restarted, or it returned an invalid value. The
                message has the index of the environment, the step of the episode and the observation key.
        """
        # Actions with a shape are copied, because environments and the replay log can keep their rows.
        own = (np.asarray if self._takes_numbers else np.array)(action, self._action_dtype)
        assert own.shape == self._action_shape, (own.shape, self.spec.action)
        return self._next_time_step(own, self._pending, into)

    def _builds(self, action: np.ndarray | None, seeds: dict[int, int | None]) -> bool:
        """Return True if `_advance` will build environments or reset them for the first time.

        Such a call has a longer time limit (`rlcore.envs.vector.watchdog.first_limit`).
        """
        return action is None or bool(self._rebuild) or (self.fresh_instance and bool(seeds))

    def _next_time_step(self, action: np.ndarray | None, opening: list[int], into: TimeStep | None) -> TimeStep:
        seeds = {index: self._open(index) for index in opening}
        time_step, reward = into or self._empty(), self._reward
        self._episodes.step()
        time_step.is_first[:] = False
        if opening:
            reward[opening] = 0.0
            time_step.is_first[opening] = True
            self._episodes.begin(time_step.is_first)
            if self._info is not None:
                self._info.begin(opening)
            time_step.terminated[opening] = time_step.truncated[opening] = False
        self._pending = self._advance(action, seeds, (time_step.obs, reward, time_step.terminated, time_step.truncated))
        if self._rebuild:
            self._rebuild.clear()
        if self._cut:
            self._repeat_last(time_step)
        self._checks.check(time_step.obs, self._episodes.length)
        if action is not None and self.tier == "replay":
            self._actions.add(action, seeds)
        self._episodes.add(reward)
        if self._info is not None:
            self._info.add()
        time_step.reward[:] = reward
        if self._pending:
            self._note_finished(self._pending)
        self._last = time_step
        return time_step

    def _note_failures(self, index: int, failures: list[str], cut: bool) -> None:
        """Count and log the failures of an environment that is restarted.

        Args:
            index: index of the environment.
            failures: messages of the failures.
            cut: True if the last failure happened during a step, so that the episode is truncated.
        """
        for failure in failures:
            log.warning("%s; the environment is restarted (env.restart_on_exception)", failure)
        self.restarts += len(failures)
        if cut:
            self._cut.add(index)

    def _repeat_last(self, time_step: TimeStep) -> None:
        """Copy the previous observation to the time step, for each environment whose step failed.

        A failed step returns no observation. The transition has the previous observation instead and is truncated.
        """
        assert self._last is not None
        for index in self._cut:
            for key, values in time_step.obs.items():
                values[index] = self._last.obs[key][index]
        self._cut.clear()

    def _spare_seed(self, index: int) -> int:
        """Return the seed of the first episode after a restart.

        The seed is needed if the environment would otherwise continue its random generator, because a restarted
        environment has a new generator.
        """
        return streams.integer(self._episode_seed(index, 0) or 0, "env", int(self._episode_index[index]))

    def _open(self, index: int) -> int | None:
        self._episode_index[index] += 1
        self._actions.begin(index)
        return self._episode_seed(index, int(self._episode_index[index]))

    def _empty(self) -> TimeStep:
        obs = {key: np.empty(shape, dtype) for key, shape, dtype in self._layout}
        return TimeStep(obs, np.empty(self.num_envs, np.float32), *(np.zeros(self.num_envs, bool) for _ in range(3)))

    # Episodes

    def _note_finished(self, indices: list[int]) -> None:
        """Add the current episodes of these environments to the finished episodes."""
        counts, info = self._episodes, {} if self._info is None else self._info.of_episodes(indices)
        counts.finished.extend(indices, counts.ret[indices].tolist(), counts.length[indices].tolist(), info)

    def pop_episodes(self) -> Episodes:
        """Return the episodes that ended since the last call of this method, ordered by time, then env index."""
        return self._episodes.finished.pop()

    def boundary(self) -> TimeStep | None:
        """Truncate unfinished episodes before a scheduled checkpoint, if the environments have the tier "boundary".

        The tier is the method by which unfinished episodes are saved; with "boundary", they cannot be saved. Every
        unfinished episode is truncated at its last observation, and the next `step` starts episodes in new
        environments. An uninterrupted run calls this method at the same steps as a resumed one, so that both give
        identical results.

        Returns:
            The last time step, in which `truncated` is true for unfinished episodes; the caller uses it instead of the
            one that `step` returned. With other tiers, the last time step without changes. None before `reset`.
        """
        if self.tier != "boundary" or self._last is None:
            return self._last
        last = self._last
        ended = np.logical_or(last.terminated, last.truncated)
        self._note_finished(np.flatnonzero(~ended & (self._episodes.length > 0)).tolist())
        self._last = TimeStep(last.obs, last.reward, last.terminated, last.truncated | ~ended, last.is_first)
        self._pending = list(range(self.num_envs))
        self._rebuild = set(self._pending)
        return self._last

    # Exact resume

    def state_dict(self) -> State:
        """Return everything that the next step depends on, as nested dicts of arrays and JSON scalars.

        Raise RunError if the state of an environment cannot be read. If the tier is "boundary", also raise RunError if
        an episode is unfinished because `boundary` was not called first.
        """
        if self.tier == "boundary" and self._last is not None and len(self._pending) < self.num_envs:
            raise RunError(
                'the environments have the tier "boundary", so their state cannot be saved during an episode; '
                "call boundary() before state_dict()"
            )
        pending = np.zeros(self.num_envs, bool)
        pending[self._pending] = True
        state: State = {
            "format": FORMAT,
            "tier": self.tier,
            "started": self._last is not None,
            "episode_index": self._episode_index.copy(),
            "pending": pending,
            "out_of_bounds": dict(self.out_of_bounds),
            "restarts": self.restarts,
            **self._episodes.state_dict(),
        }
        if self._info is not None:
            state["info"] = self._info.state_dict()
        if self._last is not None:
            state["last"] = asdict(self._last)
            if self.tier == "snapshot":
                state["lanes"] = self._capture()
            if self.tier == "replay":
                state["lanes"] = self._actions.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore a state from `state_dict`, so that the next steps are bit-identical to those after saving.

        The state can be from this process or another one. Raise RunError if `tier` or `num_envs` or the environment
        differ from those of the saved state, or if a replayed episode differs from the saved one.
        """
        now = {"format": FORMAT, "tier": self.tier, "num_envs": self.num_envs}
        refuse_other_envs(state | {"num_envs": len(state["episode_index"])}, now)
        self._episode_index = np.array(state["episode_index"])
        self._episodes.load_state_dict(state | {name: np.array(state[name]) for name in ("return", "length")})
        if self._info is not None and "info" in state:
            self._info.load_state_dict(state["info"])
        self._pending = [int(i) for i in np.flatnonzero(state["pending"])]
        self._rebuild = set(self._pending) if self.tier == "boundary" else set()
        self._checks.outside = dict(state["out_of_bounds"])
        self.restarts = state["restarts"]
        self._actions = ActionLog(self.num_envs, self.spec.action)
        self._last = None
        if state["started"]:
            self._load_started(state)

    def _load_started(self, state: State) -> None:
        last = state["last"]
        obs = {key: np.array(last["obs"][key]) for key in self.spec.obs}
        flags = (np.array(last[k]) for k in ("reward", "terminated", "truncated", "is_first"))
        self._last = TimeStep(obs, *flags)
        if self.tier == "boundary":
            return
        if self.tier == "snapshot":
            self._restore(unstack(state["lanes"], self.num_envs))
        else:
            self._actions.load_state_dict(state["lanes"])
            self._replay_open(obs)

    def _replay_open(self, saved: dict[str, np.ndarray]) -> None:
        # An ended episode is not replayed, because the next one starts from its own seed.
        episodes: dict[int, tuple[Any, np.ndarray]] = {
            i: (self._episode_seed(i, int(self._episode_index[i])), self._actions.episode(i))
            for i in range(self.num_envs)
            if i not in self._pending
        }
        rows = self._empty()
        self._replay(episodes, rows.obs)
        for index, (seed, actions) in episodes.items():
            for key, values in saved.items():
                if rows.obs[key][index].tobytes() != values[index].tobytes():
                    raise RunError(
                        f"environment {index}: its episode (seed {seed}) was replayed with the {len(actions)} saved "
                        f"actions, but the last observation {key!r} differs from the saved one: {self.spec.id} is not "
                        "deterministic on this machine; compare the package versions in the environment card with the "
                        "installed ones"
                    )


def _clear(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return `values` with 0 if the mask is True."""
    return np.where(mask, 0, values)
