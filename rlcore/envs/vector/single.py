"""One environment of a vectorized environment: construction, steps, checks, saving, restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from rlcore.config.groups import RestartConfig
from rlcore.config.info_keys import read_info_keys
from rlcore.envs.drawing import stop_drawing
from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.gym_form import describe_form, explain_form
from rlcore.envs.spaces import LARGEST, Bounds, obs_bounds, spec_of
from rlcore.envs.vector.info_values import read_value
from rlcore.envs.vector.restarts import Restarts
from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.spec import EnvSpec
from rlcore.types import State
from rlcore.user_code import is_failure, spell_error

Row = tuple[float, bool, bool]  # reward, terminated, truncated


class SingleEnv:
    """One environment of a vectorized environment; it writes its observations to one row of shared arrays [B, ...].

    The class is used by vectorized environments in one process, and in the worker process of an environment.

    Args:
        build: function that creates the environment.
        index: index of the environment, for messages.
        fresh_instance: if True, a new environment is built for every episode, because a used one behaves differently.
        restart: limits on restarts after failures.
        lost: True if this object replaces an environment whose process died or hung. The first reset then uses the seed
            for episodes after a restart (`spare`).
        info_keys: value of `env.info_keys`, K entries.

    Attributes:
        info: [K] float64, the values of these keys in the last step; NaN = not in `info`. The caller can replace it by
            another array, to which the values are then written.
        failures: messages of the failures after which the environment was restarted; the caller clears the list.
    """

    info: np.ndarray
    failures: list[str]

    def __init__(
        self,
        build: Callable[[], gymnasium.Env],
        index: int,
        fresh_instance: bool = False,
        restart: RestartConfig | None = None,
        lost: bool = False,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.build = build
        self.index = index
        self.fresh_instance = fresh_instance
        self.env = build()
        self.used = False
        self.length = 0
        self.restarts = Restarts(restart or RestartConfig())
        self.broken = lost
        self.failures = []
        self._info_keys = read_info_keys(info_keys)
        self.info = np.full(len(info_keys), np.nan)
        self.spec: EnvSpec = spec_of(self.env)
        self.bounds: Bounds = obs_bounds(self.env)
        self._layout = [(key, part.shape, np.dtype(part.dtype)) for key, part in self.spec.obs.items()]

    def reset(
        self,
        seed: int | None,
        obs: dict[str, np.ndarray],
        row: int,
        rebuild: bool = False,
        spare: int | None = None,
    ) -> None:
        """Start an episode and write its first observation.

        Raise EnvironmentFault if the environment raises an error, or if its observation is invalid.

        Args:
            seed: seed of the episode; None: the environment continues its random generator.
            obs: observation key -> array [B, ...], to which the observation is written.
            row: index of the row of the arrays.
            rebuild: if True, build a new environment first.
            spare: seed to use if `seed` is None and the environment has been restarted; a restarted environment has no
                random generator to continue.
        """
        self.length = 0
        self.info.fill(np.nan)
        while True:
            try:
                if self.broken:
                    self._restart()
                    seed = spare if seed is None else seed
                elif self.used and (rebuild or self.fresh_instance):
                    self.rebuild()
                self.used = True
                first, _ = self.env.reset(seed=seed)
            except BaseException as error:
                if not is_failure(error):
                    raise
                if isinstance(error, UserError) and not self.broken:  # the environment cannot be made
                    raise
                self._note_failure("reset", error)
            else:
                break
        self.broken = False
        try:
            self._write(first, obs, row)
        except EnvironmentFault:  # a bare observation of two elements was unpacked as (obs, info)
            if message := describe_form(self.env, "reset"):
                raise self._fault(message) from None
            raise

    def _restart(self) -> None:
        """Close the environment after a failure and build a new one; errors of closing are ignored.

        An environment that has not been used is kept.
        """
        if self.used:
            with contextlib.suppress(Exception):
                self.close()
            self.restarts.pause()
            self.env, self.used = self.build(), False

    def _note_failure(self, call: str, error: BaseException, action: Any = None) -> None:
        """Count a failure, and remember that the environment must be restarted.

        Raise EnvironmentFault if no restart is allowed, or if a restart cannot help, because the environment does not
        follow the Gymnasium API.

        Args:
            call: name of the method that failed, "reset" or "step".
            error: exception that the method raised.
            action: action of the step.
        """
        if message := explain_form(self.env, call, error, action):
            raise self._fault(message) from error
        what = f"{call} raised {spell_error(error)}"
        if not self.restarts.allow():
            raise self._fault(f"{what}{self.restarts.explain_giving_up()}") from error
        self.broken = True
        self.info.fill(np.nan)
        self.failures.append(f"environment {self.index}, step {self.length} of its episode: {what}")

    def step(self, action: Any, obs: dict[str, np.ndarray], row: int) -> Row:
        """Take one action of the environment's action space, and write the observation.

        If the environment fails and can be restarted, the message is added to `failures`, the episode is truncated, and
        no observation is written.

        Args:
            action: the action.
            obs: observation key -> array [B, ...], to which the observation is written.
            row: index of the row of the arrays.

        Returns:
            Reward, terminated, truncated.

        Raises:
            EnvironmentFault: The environment failed and cannot be restarted, or it returned an invalid value. The
                message has the index of the environment, the step of the episode and the observation key.
        """
        self.length += 1
        try:
            new, reward, terminated, truncated, info = self.env.step(action)
        except BaseException as error:
            if not is_failure(error):
                raise
            self._note_failure("step", error, action)
            return 0.0, False, True
        self._write(new, obs, row)
        if self._info_keys:
            self._read_info(info)
        plain = reward if isinstance(reward, float) else self._plain_reward(reward)
        if not -LARGEST <= plain <= LARGEST:  # also True for NaN
            raise self._fault(f"reward is {plain}, but must be a finite float32 number")
        if terminated.__class__ is not bool or truncated.__class__ is not bool:
            return plain, self._plain_flag("terminated", terminated), self._plain_flag("truncated", truncated)
        return plain, terminated, truncated

    def rebuild(self) -> None:
        """Replace the environment by a new one."""
        self.env.close()
        self.env = self.build()
        self.used = False

    def capture(self) -> State:
        """Return the environment's state for `restore`; raise RunError if an attribute cannot be read."""
        if self.broken:  # no state is needed, because the next episode starts in a new environment
            return {"length": self.length, "broken": True}
        try:
            return {"env": capture(self.env), "length": self.length}
        except OpaqueStateError as opaque:
            raise RunError(
                f"environment {self.index}: {opaque} cannot be saved, so the state of {self.spec.id} cannot be stored, "
                'although its environment card has the tier "snapshot"; measure the card again with '
                "`shepherd stage make-env RUN`"
            ) from None

    def restore(self, state: State) -> None:
        """Restore a state from `capture`; an environment that has been used is first replaced by a new one."""
        if self.used:
            self.rebuild()
        self.length, self.broken = state["length"], state.get("broken", False)
        if not self.broken:
            restore(self.env, state["env"])
            self.used = True

    def replay(self, seed: int | None, actions: list[Any], obs: dict[str, np.ndarray], row: int) -> None:
        """Play the actions of an episode again in a new environment, and write the last observation.

        Raise EnvironmentFault if the environment fails.

        Args:
            seed: seed of the episode.
            actions: all actions of the episode so far.
            obs: observation key -> array [B, ...], to which the observation is written.
            row: index of the row of the arrays.
        """
        if self.used:
            self.rebuild()
        stop_drawing(self.env, bool(actions))  # only the last image is used
        self.reset(seed, obs, row)
        for count, action in enumerate(actions, 1):
            stop_drawing(self.env, count < len(actions))
            self.step(action, obs, row)
            if self.broken:
                raise EnvironmentFault(self.failures[-1])

    def close(self) -> None:
        """Close the environment; raise EnvironmentFault if that fails."""
        try:
            self.env.close()
        except BaseException as error:
            if not is_failure(error):
                raise
            raise self._fault(f"close raised {spell_error(error)}") from error

    def _write(self, new: Any, obs: dict[str, np.ndarray], row: int) -> None:
        for key, shape, dtype in self._layout:
            try:
                value = new[key]
            except (KeyError, TypeError, IndexError):
                raise self._fault(f"key {key!r} is missing from the observation") from None
            if value.__class__ is np.ndarray:
                if value.shape != shape or value.dtype is not dtype:
                    value = self._fitting(key, value, shape, dtype)
            elif shape or value.__class__ is not int:
                value = self._fitting(key, value, shape, dtype)
            obs[key][row] = value

    def _read_info(self, info: Any) -> None:
        try:
            for place, key in enumerate(self._info_keys):
                self.info[place] = read_value(info, key)
        except ValueError as error:
            raise self._fault(str(error)) from None

    def _fitting(self, key: str, value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError:
            raise self._fault(f"key {key!r} of the observation cannot be converted to an array") from None
        if array.shape != shape:
            raise self._fault(f"key {key!r} has shape {array.shape}, but its space has {shape}")
        if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind != "f" and (array % 1 != 0).any()):
            raise self._fault(f"key {key!r} has type {array.dtype}, but its space has {dtype}")
        return array

    def _plain_reward(self, reward: Any) -> float:
        if getattr(reward, "shape", ()) != () or isinstance(reward, (str, bytes, complex)):
            raise self._fault(f"reward is {reward!r}, but must be one real number")
        try:
            return float(reward)
        except OverflowError:
            raise self._fault("reward is an integer too large for a float") from None
        except (TypeError, ValueError):
            raise self._fault(f"reward is {reward!r}, but must be one real number") from None

    def _plain_flag(self, name: str, flag: Any) -> bool:
        # bool() would accept None, NaN and "False".
        if np.shape(flag) != () or np.asarray(flag).dtype.kind not in ("b", "i", "u") or flag not in (0, 1):
            raise self._fault(f"{name} is {flag!r}, but must be True or False")
        return bool(flag)

    def _fault(self, text: str) -> EnvironmentFault:
        return EnvironmentFault(f"environment {self.index}, step {self.length} of its episode: {text}")
