"""Environments that compute all of their copies at once, by the vectorised code that a suite has for some ids.

Each lane's episodes are those of a single environment: it draws their starts, from the lane's own seed and generator,
and counts their time limit. So the choice of vector changes no bit, a lane does not depend on another's end, and a
state saved by one kind of vector goes on in the other.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from rlcore.config.groups import EnvConfig
from rlcore.envs.exact.recording import random_action
from rlcore.envs.exact.stacked import stack, stack_encoded, unstack
from rlcore.envs.exact.state import capture, restore
from rlcore.envs.make import EnvSettings, make, suite_for
from rlcore.envs.spaces import obs_bounds, spec_of
from rlcore.envs.suites.registry import SUITES
from rlcore.envs.suites.suite import check_arguments
from rlcore.envs.vector.episodic import ArrivalArrays, EpisodeSeed, EpisodicVectorEnv
from rlcore.envs.vector.serial import SerialVectorEnv
from rlcore.envs.wrappers import FlatDictObservation, layers, time_limit
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.types import State
from rlcore.user_code import is_failure, spell_error

log = logging.getLogger(__name__)

TRIED, TRIED_STEPS = 13, 60  # lanes, a number of no power of two, and actions by which exactness is tried
_EXACT: dict[str, bool] = {}  # by settings, found out once a process
FORBIDS = ("normalize_actions", "action_repeat", "mask_velocities", "num_stack", "reward_as_observation", "restart")
OTHER_NAMES = {"num_stack": "actions_as_observation", "restart": "restart_on_exception"}
WORTH_IT = 8  # environments from which on one computation is quicker: 4 take 37 µs singly and 48 so, 8 take 63 and 51


class NativeVectorEnv(EpisodicVectorEnv):
    """B lanes of one vectorised environment, in this process. Their state is always saved as a snapshot.

    Args:
        settings: of one environment; `refuse` has nothing against them.
        num_envs: B.
        episode_seed: seed of each episode.
    """

    def __init__(self, settings: EnvSettings, num_envs: int, episode_seed: EpisodeSeed) -> None:
        self._single = [make(settings) for _ in range(num_envs)]
        first = self._single[0]
        self._limit = time_limit(first)
        suite, env_id = suite_for(settings)
        code = suite.vector(env_id, check_arguments(suite, env_id, settings.wrapper))
        assert code is not None
        self._lanes = code(num_envs)
        super().__init__(num_envs, spec_of(first), obs_bounds(first), episode_seed, "snapshot", False)

    def _advance(self, action: np.ndarray | None, seeds: dict[int, int | None], rows: ArrivalArrays) -> list[int]:
        obs, reward, terminated, truncated = rows
        if action is not None:
            for index in seeds:  # its generator goes on where the episode left it; the lane's step is for nothing
                self._lanes.take(index, self._single[index])
            try:
                new, reward[:], terminated[:] = self._lanes.step(action)
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise EnvironmentFault(f"the environments' step raised {spell_error(error)}") from error
            named = new if isinstance(new, dict) else dict.fromkeys(obs, new)  # what has no key of its own has one
            for key, values in named.items():
                obs[key][:] = values
            if self._limit is not None:
                np.greater_equal(self._length, self._limit, out=truncated)
        for index, seed in seeds.items():
            single = self._single[index]
            for key, value in single.reset(seed=seed)[0].items():
                obs[key][index] = value
            self._lanes.put(index, single)
            reward[index], terminated[index], truncated[index] = 0.0, False, False
        return (terminated | truncated).nonzero()[0].tolist()

    def _capture(self) -> State:
        """The states of the lanes, stacked as those of single environments are."""
        lengths = self._length.tolist()
        find = getattr(self._lanes, "attributes", None)  # lanes of a suite from outside need not have it
        values = find([one.unwrapped for one in self._single]) if find else None
        if values is None:
            return stack([self._capture_lane(index, length) for index, length in enumerate(lengths)])
        own = {k: {"arrays": v} if isinstance(v, np.ndarray) else stack_encoded(v) for k, v in values.items()}
        first, counts, parts = self._single[0], stack_encoded(lengths), dict[str, State]()
        for (index, layer), chain in zip(self._capture_lane(0, 0)["env"]["layers"].items(), layers(first), strict=True):
            # What the lanes have in common is that of the first.
            common: dict[str, State] = {name: {"same": value} for name, value in layer["attributes"].items()}
            if isinstance(chain, TimeLimit):
                common["_elapsed_steps"] = counts
            attributes = common | (own if chain is first.unwrapped else {})
            parts[index] = {"fields": {"class": {"same": layer["class"]}, "attributes": {"fields": attributes}}}
        return {"fields": {"env": {"fields": {"layers": {"fields": parts}}}, "length": counts}}

    def _capture_lane(self, index: int, length: int) -> State:
        """The state of a lane as that of a single environment."""
        single = self._single[index]
        self._lanes.take(index, single)
        for layer in layers(single):
            if isinstance(layer, TimeLimit):
                layer._elapsed_steps = length  # pyright: ignore[reportPrivateUsage]
        return {"env": capture(single), "length": length}

    def _restore(self, states: list[State]) -> None:
        for index, (single, state) in enumerate(zip(self._single, states, strict=True)):
            if "steps" in state:
                raise RunError("the saved environments are of a version that is no longer read; begin a new run")
            restore(single, state["env"])
            self._lanes.put(index, single)

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        raise AssertionError("a snapshot is never replayed")

    def close(self) -> None:
        """Release the environments."""
        for single in self._single:
            single.close()
        self._lanes.close()


def worth_it(config: EnvConfig, num_envs: int) -> bool:
    """Decide whether `auto` is native: such code fits these settings and is exact, and B is large enough."""
    fits = num_envs >= WORTH_IT and config.sync_env and not _forbidden(config) and _has_code(config)
    return fits and not _wrappers(config) and _exact_here(EnvSettings.of(config))


def _exact_here(settings: EnvSettings) -> bool:
    """Find out whether lanes give the bits of single environments here: a machine's vectorised sines may be its own."""
    key = repr(settings)
    if key not in _EXACT:
        lanes = NativeVectorEnv(settings, TRIED, _trial_seed)
        single = SerialVectorEnv(lambda: make(settings), TRIED, _trial_seed)
        with closing(lanes), closing(single):
            _EXACT[key] = _play_bytes(lanes) == _play_bytes(single)
        if not _EXACT[key]:
            log.warning("%s: its vectorised code is not exact on this machine, so it is not taken", settings.id)
    return _EXACT[key]


def _trial_seed(env_index: int, episode_index: int) -> int:
    return 1000 * env_index + episode_index


def _play_bytes(envs: NativeVectorEnv | SerialVectorEnv) -> list[bytes]:
    """Arrivals of random actions, and the states of those episodes that have not ended, whose last bits they hide."""
    rng, arrival, found = np.random.default_rng(0), envs.reset(), []
    for _ in range(TRIED_STEPS):
        rows = [{key: values[i] for key, values in arrival.obs.items()} for i in range(envs.num_envs)]
        arrival = envs.step(np.stack([np.asarray(random_action(envs.spec, rng, obs)) for obs in rows]))
        parts = (*arrival.obs.values(), arrival.reward, arrival.terminated, arrival.truncated, arrival.is_first)
        found.append(b"|".join(part.tobytes() for part in parts))
    states = enumerate(unstack(envs._capture(), envs.num_envs))  # pyright: ignore[reportPrivateUsage]
    ended = arrival.terminated | arrival.truncated
    return [*found, *(_bits(state) for index, state in states if not ended[index])]


def _bits(value: Any) -> bytes:
    """The bits of a captured state."""
    if isinstance(value, dict):
        return b"|".join(f"{key}:".encode() + _bits(part) for key, part in value.items())
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def refuse(config: EnvConfig) -> None:
    """Refuse `env.vectorization=native` where there is no such code, or settings that it does not know.

    The UserError names the key and what to do.
    """
    asked = "env.vectorization=native"
    if not _has_code(config):
        have = [env_id for suite in SUITES.values() for env_id in suite.ids() if suite.vector(env_id, {}) is not None]
        raise UserError(
            f"{asked}: {config.id} has no vectorised code whose lanes can be seeded one by one; "
            f"{', '.join(sorted(have))} have, others take env.vectorization=single"
        )
    for key in _forbidden(config):
        name = OTHER_NAMES.get(key, key)
        raise UserError(f"{asked}: not together with env.{name}, which is of single environments; leave one out")
    if wrappers := _wrappers(config):
        raise UserError(f"{asked}: not together with {wrappers[0]}, a wrapper of single environments")
    if not config.sync_env:
        raise UserError(f"{asked}: all lanes are one computation in this process; set env.sync_env=true")


def _has_code(config: EnvConfig) -> bool:
    suite, env_id = suite_for(config)
    return suite.vector(env_id, config.wrapper) is not None


def _wrappers(config: EnvConfig) -> list[str]:
    """Wrappers of ours that change what single environments give, as the size of their images."""
    with closing(make(config)) as env:
        ours = [layer for layer in layers(env) if isinstance(layer, gymnasium.Wrapper)]
    return [
        type(layer).__name__
        for layer in ours
        if type(layer).__module__.startswith("rlcore.envs.") and not isinstance(layer, FlatDictObservation)
    ]


def _forbidden(config: EnvConfig) -> list[str]:
    settings, plain = EnvSettings.of(config), EnvSettings("")
    return [key for key in FORBIDS if getattr(settings, key) != getattr(plain, key)]
