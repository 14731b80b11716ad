"""Vectorized environment (`env.vectorization=native`) that uses the vectorized code of a suite.

The vectorized code computes B copies of the environment, called lanes. For each lane there is also a single environment
object. It has the seed of the lane and draws the initial states of the lane's episodes. A lane therefore returns
bit-identical results to a single environment and does not depend on other lanes. A state that was saved with single
environments can be loaded into lanes, and vice versa.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
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
from rlcore.system.devices import processor
from rlcore.types import State
from rlcore.user_code import is_failure, spell_error

log = logging.getLogger(__name__)

TRIED, TRIED_STEPS = 13, 60  # number of environments (not a power of two) and of steps in the test of exactness
MEASURED = "SHEPHERD_VECTORIZED"  # environment variable: settings -> result of this test; inherited by children
FORBIDS = (
    "normalize_actions",
    "action_repeat",
    "mask_velocities",
    "num_stack",
    "reward_as_observation",
    "action_mask_from_info",
    "restart",
)
OTHER_NAMES = {"num_stack": "actions_as_observation", "restart": "restart_on_exception"}
WORTH_IT = 8  # minimum B for native; a step of 4 takes 37 µs single, 48 µs native; of 8, 63 µs single, 51 µs native


class NativeVectorEnv(EpisodicVectorEnv):
    """Vectorized environment in which one vectorized implementation computes B copies (lanes) of an environment.

    The implementation runs in this process. `state_dict` saves the state of every environment (tier "snapshot").

    Args:
        settings: settings of one environment. The caller has checked them with `refuse`, which raises UserError if a
            setting is not supported.
        num_envs: B.
        episode_seed: function (env index, episode index) -> seed of the episode.
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
            for index in seeds:  # the reset uses this environment's generator; its vectorized step is discarded
                self._lanes.take(index, self._single[index])
            try:
                new, reward[:], terminated[:] = self._lanes.step(action)
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise EnvironmentFault(
                    f"the vectorized step of all environments raised {spell_error(error)}"
                ) from error
            named = new if isinstance(new, dict) else dict.fromkeys(obs, new)  # not a dict: one key
            for key, values in named.items():
                obs[key][:] = values
            if self._limit is not None:
                np.greater_equal(self._episodes.length, self._limit, out=truncated)
        for index, seed in seeds.items():
            single = self._single[index]
            for key, value in single.reset(seed=seed)[0].items():
                obs[key][index] = value
            self._lanes.put(index, single)
            reward[index], terminated[index], truncated[index] = 0.0, False, False
        return (terminated | truncated).nonzero()[0].tolist()

    def _capture(self) -> State:
        """Return the stacked states of the B environments, in the format of `SerialVectorEnv`."""
        lengths = self._episodes.length.tolist()
        find = getattr(self._lanes, "attributes", None)  # optional in vectorized code of a plugin
        values = find([one.unwrapped for one in self._single]) if find else None
        if values is None:
            return stack([self._capture_lane(index, length) for index, length in enumerate(lengths)])
        own = {k: {"arrays": v} if isinstance(v, np.ndarray) else stack_encoded(v) for k, v in values.items()}
        first, counts, parts = self._single[0], stack_encoded(lengths), dict[str, State]()
        for (index, layer), chain in zip(self._capture_lane(0, 0)["env"]["layers"].items(), layers(first), strict=True):
            # Attributes that all lanes share are taken from the first one.
            common: dict[str, State] = {name: {"same": value} for name, value in layer["attributes"].items()}
            if isinstance(chain, TimeLimit):
                common["_elapsed_steps"] = counts
            attributes = common | (own if chain is first.unwrapped else {})
            parts[index] = {"fields": {"class": {"same": layer["class"]}, "attributes": {"fields": attributes}}}
        return {"fields": {"env": {"fields": {"layers": {"fields": parts}}}, "length": counts}}

    def _capture_lane(self, index: int, length: int) -> State:
        """Return the state of environment `index` in the format of `SingleEnv.capture`.

        `length` is the number of steps in its episode so far.
        """
        single = self._single[index]
        self._lanes.take(index, single)
        for layer in layers(single):
            if isinstance(layer, TimeLimit):
                layer._elapsed_steps = length  # pyright: ignore[reportPrivateUsage]
        return {"env": capture(single), "length": length}

    def _restore(self, states: list[State]) -> None:
        for index, (single, state) in enumerate(zip(self._single, states, strict=True)):
            if "steps" in state:
                raise RunError(
                    "the environments were saved by a version of this project that is no longer supported; "
                    "start a new run"
                )
            restore(single, state["env"])
            self._lanes.put(index, single)

    def _replay(self, episodes: dict[int, tuple[int | None, np.ndarray]], obs: dict[str, np.ndarray]) -> None:
        raise AssertionError("a snapshot is never replayed")

    def close(self) -> None:
        """Close the environments."""
        for single in self._single:
            single.close()
        self._lanes.close()


def is_faster(config: EnvConfig, num_envs: int) -> bool:
    """Return True if `env.vectorization=auto` uses vectorized code.

    The conditions are: B is at least `WORTH_IT`, vectorized code supports the environment and its settings, and its
    results are bit-identical to those of single environments.
    """
    fits = num_envs >= WORTH_IT and config.sync_env and not _forbidden(config) and _has_code(config)
    return fits and not _wrappers(config) and _exact_here(EnvSettings.of(config))


def _exact_here(settings: EnvSettings) -> bool:
    """Return True if the vectorized environments return bit-identical results to single environments on this machine.

    Both are played and compared, because on some machines a vectorized sine differs from the sine of a single number.
    The result is stored for this process and its child processes.
    """
    # A digest, because the kernel limits the length of a variable. The result holds for one processor and one NumPy.
    key = hashlib.sha256(repr((settings, processor(), np.__version__)).encode()).hexdigest()[:16]
    measured = _measured()
    if key not in measured:
        lanes = NativeVectorEnv(settings, TRIED, _trial_seed)
        single = SerialVectorEnv(lambda: make(settings), TRIED, _trial_seed)
        with closing(lanes), closing(single):
            measured[key] = _play_bytes(lanes) == _play_bytes(single)
        os.environ[MEASURED] = json.dumps(measured)
        if not measured[key]:
            log.warning("%s: its vectorized code is not exact on this machine and is not used", settings.id)
    return measured[key]


def _measured() -> dict[str, bool]:
    """Return the stored results of `_exact_here`; raise UserError if the user has set their environment variable."""
    text = os.environ.get(MEASURED) or "{}"
    with contextlib.suppress(ValueError, RecursionError):
        measured = json.loads(text)
        if isinstance(measured, dict) and all(isinstance(exact, bool) for exact in measured.values()):
            return measured
    raise UserError(
        f"{MEASURED}={text}: only Shepherd may set this variable, to results of a test; remove it from the "
        "environment and from .env. To disable vectorized environments, set env.vectorization=single"
    )


def _trial_seed(env_index: int, episode_index: int) -> int:
    return 1000 * env_index + episode_index


def _play_bytes(envs: NativeVectorEnv | SerialVectorEnv) -> list[bytes]:
    """Play random actions; return the results of all steps and the final states of the environments, as bytes.

    The final states are included, because observations in float32 do not contain the last bits of states in float64.
    """
    rng, time_step, found = np.random.default_rng(0), envs.reset(), []
    for _ in range(TRIED_STEPS):
        rows = [{key: values[i] for key, values in time_step.obs.items()} for i in range(envs.num_envs)]
        time_step = envs.step(np.stack([np.asarray(random_action(envs.spec, rng, obs)) for obs in rows]))
        parts = (
            *time_step.obs.values(),
            time_step.reward,
            time_step.terminated,
            time_step.truncated,
            time_step.is_first,
        )
        found.append(b"|".join(part.tobytes() for part in parts))
    states = enumerate(unstack(envs._capture(), envs.num_envs))  # pyright: ignore[reportPrivateUsage]
    ended = time_step.terminated | time_step.truncated
    return [*found, *(_bits(state) for index, state in states if not ended[index])]


def _bits(value: Any) -> bytes:
    """Convert a captured state to bytes."""
    if isinstance(value, dict):
        return b"|".join(f"{key}:".encode() + _bits(part) for key, part in value.items())
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def refuse(config: EnvConfig) -> None:
    """Raise UserError if `env.vectorization=native` is not available for the environment or its settings."""
    asked = "env.vectorization=native"
    if not _has_code(config):
        have = [env_id for suite in SUITES.values() for env_id in suite.ids() if suite.vector(env_id, {}) is not None]
        raise UserError(
            f"{asked}: {config.id} has no vectorized code with one seed per environment; it is available for "
            f"{', '.join(sorted(have))}; set env.vectorization=single"
        )
    for key in _forbidden(config):
        name = OTHER_NAMES.get(key, key)
        raise UserError(
            f"{asked}: cannot be combined with env.{name}, which needs single environments; "
            f"set env.vectorization=single or remove env.{name}"
        )
    if wrappers := _wrappers(config):
        raise UserError(
            f"{asked}: cannot be combined with {wrappers[0]}, a wrapper of single environments; "
            "set env.vectorization=single"
        )
    if not config.sync_env:
        raise UserError(
            f"{asked}: cannot be combined with env.sync_env=false, which uses one process per environment; "
            "set env.sync_env=true"
        )


def _has_code(config: EnvConfig) -> bool:
    suite, env_id = suite_for(config)
    return suite.vector(env_id, config.wrapper) is not None


def _wrappers(config: EnvConfig) -> list[str]:
    with closing(make(config)) as env:
        return added_wrappers(env)


def added_wrappers(env: gymnasium.Env) -> list[str]:
    """Return the names of an environment's wrappers that vectorized code does not have, for example `ScreenSize`."""
    ours = [layer for layer in layers(env) if isinstance(layer, gymnasium.Wrapper)]
    return [
        type(layer).__name__
        for layer in ours
        if type(layer).__module__.startswith("rlcore.envs.") and not isinstance(layer, FlatDictObservation)
    ]


def _forbidden(config: EnvConfig) -> list[str]:
    settings, plain = EnvSettings.of(config), EnvSettings("")
    found = [key for key in FORBIDS if getattr(settings, key) != getattr(plain, key)]
    return [*found, "info_keys"] if config.info_keys else found
