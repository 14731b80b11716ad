"""Recording of episodes with random actions, so that episodes can be compared bit for bit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rlcore import streams
from rlcore.envs.masks import draw_allowed
from rlcore.errors import EnvironmentFault
from rlcore.spec import ActionSpec, EnvSpec
from rlcore.user_code import is_failure, spell_error

MAX_EPISODES = 20
MAX_STEPS = 4000  # maximum number of steps of all recorded episodes together
MAX_SECONDS = 3.0  # processor time, so that other load on the machine does not change the result
MAX_WAIT = 20.0  # seconds of wall-clock time, for environments that mostly wait
# Maximum number of repeats of an action. Every other episode repeats actions, because a robot never falls under noise
# that changes with each step.
LONGEST_HOLD = 20

Build = Callable[[], gymnasium.Env]


@dataclass
class Recording:
    """Record of one episode.

    `arrivals` has the results of reset and of every step as bytes. `actions` and `rewards` have an element for each
    step. `ended` and `truncated` are those of the last step.
    """

    arrivals: list[bytes] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended: bool = False
    truncated: bool = False

    def reset(self, env: gymnasium.Env, seed: int) -> dict[str, Any]:
        """Start the recorded episode; return its first observation."""
        obs, _ = env.reset(seed=seed)
        self.arrivals.append(time_step_bytes(obs))
        return obs

    def step(self, env: gymnasium.Env, action: Any) -> dict[str, Any]:
        """Take one action; return the observation."""
        self.actions.append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        self.arrivals.append(time_step_bytes(obs, float(reward), bool(terminated), bool(truncated)))
        self.rewards.append(float(reward))
        self.ended, self.truncated = bool(terminated or truncated), bool(truncated)
        return obs

    def try_step(self, env: gymnasium.Env, action: Any) -> None:
        """Take one action; if the environment raises an error, record the error as the end of the episode.

        The method is used to replay actions of another recording. If the episode then takes another course, an action
        can be invalid and raise an error.
        """
        try:
            self.step(env, action)
        except BaseException as error:
            if not is_failure(error):
                raise
            self.arrivals.append(f"{type(error).__name__}: {error}".encode())
            self.ended = True


def time_step_bytes(
    obs: dict[str, Any], reward: float = 0.0, terminated: bool = False, truncated: bool = False
) -> bytes:
    """Convert the result of one call of reset or step to bytes, so that results can be compared bit for bit."""
    parts = [np.asarray(value).tobytes() for value in obs.values()]
    return b"|".join([*parts, np.float64(reward).tobytes(), bytes([terminated, truncated])])


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed of one recorded episode."""
    return streams.integer(seed, "probe", 1, episode)


def record_episodes(make_env: Build, spec: EnvSpec, seed: int) -> tuple[list[Recording], str]:
    """Play episodes of random actions, each in a newly built environment, and record them.

    Args:
        make_env: function that builds one environment.
        spec: spec of the environment.
        seed: seed from which the actions and the seeds of all episodes are derived.

    Returns:
        The recordings, and the limit at which the recording stopped: "episodes", "steps" or "seconds".

    Raises:
        EnvironmentFault: The environment raises an error, or returns a reward that is not finite. The message has the
            episode and the step.
    """
    has_time, steps_left, episodes = timer(), MAX_STEPS, []
    for episode in range(MAX_EPISODES):
        with make_env() as env:
            recording = record_episode(env, spec, seed, episode, steps_left, has_time)
        episodes.append(recording)
        steps_left -= len(recording.actions)
        if steps_left <= 0:
            return episodes, "steps"
        if not has_time():
            return episodes, "seconds"
    return episodes, "episodes"


def record_episode(
    env: gymnasium.Env, spec: EnvSpec, seed: int, episode: int, steps: int, has_time: Callable[[], bool]
) -> Recording:
    """Play one episode of random actions and record it.

    Args:
        env: the environment.
        spec: spec of the environment.
        seed: seed from which the actions and the seeds of all episodes are derived.
        episode: number of the episode. In episodes with an odd number, each action is repeated for 1 to `LONGEST_HOLD`
            steps.
        steps: maximum number of actions.
        has_time: function that returns False after the time limit of the recordings.

    Returns:
        The recording.

    Raises:
        EnvironmentFault: The environment raises an error, or returns a reward that is not finite. The message has the
            episode and the step.
    """
    rng, recording = streams.generator(seed, "probe", 0, episode), Recording()
    try:
        obs, held = recording.reset(env, episode_seed(seed, episode)), []
        while not recording.ended and len(recording.actions) < steps and has_time():
            hold = int(rng.integers(1, LONGEST_HOLD + 1)) if episode % 2 else 1
            if len(held) < 2 or allowed_action(held[1], spec, obs) is not held[1]:
                held = [None, *[random_action(spec, rng, obs)] * hold]
            held = held[1:]
            obs = recording.step(env, held[0])
    except BaseException as error:
        if not is_failure(error):
            raise
        raise EnvironmentFault(
            f"this environment fails under random actions: episode {episode}, step {len(recording.actions)} "
            f"raised {spell_error(error)}"
        ) from error
    if odd := next((at for at, reward in enumerate(recording.rewards, 1) if not math.isfinite(reward)), None):
        raise EnvironmentFault(
            f"this environment fails under random actions: episode {episode}, step {odd}: "
            f"reward is {recording.rewards[odd - 1]}, but must be finite"
        )
    return recording


def timer() -> Callable[[], bool]:
    """Start a timer; return a function that returns True until the time limit of all recordings is reached.

    The limit is `MAX_SECONDS` of processor time or `MAX_WAIT` seconds of wall-clock time, whichever is reached first.
    """
    cpu, wall = time.process_time() + MAX_SECONDS, time.monotonic() + MAX_WAIT
    return lambda: time.process_time() < cpu and time.monotonic() < wall


def allowed_action(action: Any, spec: EnvSpec, obs: dict[str, Any]) -> Any:
    """Replace every sub-action that an action mask forbids by the next allowed choice.

    If all sub-actions are allowed, or if the environment has no masks, the object `action` itself is returned.
    """
    if not (keys := spec.mask_keys):
        return action
    masks, chosen = {key: np.asarray(obs[key])[None] for key in keys}, []
    flat = np.array(action).reshape(-1)
    for part, (column, start) in enumerate(_discrete_columns(spec.action)):
        allowed = spec.allowed(masks, part, chosen, np.concatenate)
        choices = (np.ones((1, 0)) if allowed is None else allowed)[0].nonzero()[0] + start
        if allowed is not None and flat[column] not in choices:
            flat[column] = choices[np.searchsorted(choices, flat[column]) % len(choices)]
        chosen.append(flat[column : column + 1] - start)
    if (flat == np.reshape(action, -1)).all():
        return action
    return flat.reshape(spec.action.shape) if spec.action.shape else int(flat[0])


def _discrete_columns(action: ActionSpec) -> list[tuple[int, int]]:
    """Return the index of each discrete sub-action in the flattened action of the environment, and its start."""
    found, begin = list[tuple[int, int]](), 0
    for part in action.parts or (action,):
        found += [(begin + i, start) for i, start in enumerate(part.start)]
        begin += part.width
    return found


def random_action(spec: EnvSpec, rng: np.random.Generator, obs: dict[str, Any] | None = None) -> Any:
    """Draw a uniformly random action; unbounded elements of a Box are drawn from the standard normal distribution.

    The action is an element of the environment's action space. If an observation is given, discrete actions are drawn
    among the choices that the action masks in the observation allow.
    """
    action, keys = spec.action, spec.mask_keys if obs is not None else ()
    if action.parts:
        drawn = [random_action(EnvSpec(spec.id, {}, part), rng) for part in action.parts]
        flat = np.concatenate([np.reshape(part, -1).astype(np.float64) for part in drawn])
        if keys and obs is not None:
            allowed = draw_allowed(spec, {key: np.asarray(obs[key])[None] for key in keys}, rng)[0]
            for (column, start), choice in zip(_discrete_columns(action), allowed, strict=True):
                flat[column] = choice + start
        return flat
    if action.continuous:
        low, high = np.array(action.low), np.array(action.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0))
        flat = np.where(bounded, uniform, np.clip(rng.standard_normal(low.size), low, high))
    elif keys and obs is not None:
        flat = draw_allowed(spec, {key: np.asarray(obs[key])[None] for key in keys}, rng)[0] + np.array(action.start)
    else:
        flat = rng.integers(0, np.array(action.nvec)) + np.array(action.start)
    return flat.astype(action.dtype).reshape(action.shape) if action.shape else int(flat[0])
