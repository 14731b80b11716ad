"""Which way of exact resume holds for an environment, found out by playing whole episodes and comparing bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rlcore import streams
from rlcore.envs.exact.state import capture, opaque_attribute, restore
from rlcore.envs.spaces import spec_of
from rlcore.errors import EnvironmentFault
from rlcore.spec import ActionSpec
from rlcore.types import State

MAX_EPISODES = 20
MAX_STEPS = 4000  # of one pass over all its episodes
LONGEST_HOLD = 20  # steps for which every other episode holds an action: uniform noise alone never makes a robot fall
MAX_SECONDS = 3.0  # of the first pass, on the processor: what else the machine does must not decide what is found
MAX_WAIT = 20.0  # seconds on the clock, for environments that mostly wait
CAPTURES = 6  # moments at which a snapshot is taken and continued elsewhere

Build = Callable[[], gymnasium.Env]


@dataclass(frozen=True)
class TierReport:
    """What was found.

    Attributes:
        tier: "snapshot", "replay" or "boundary".
        fresh_instance: only a newly built environment gives the same episode from the same seed, or too little was
            played to be sure that a used one does.
        deterministic: the same seed and actions give the same episode.
        reason: why it is not a better tier, "" when it is the best.
        episodes: played in one pass.
        steps: actions in one pass.
        capped: what ended the pass: "episodes", "steps" or "seconds".
        longest: length of the longest finished episode, in actions.
        truncated_at: lengths at which episodes were truncated.
        reward: smallest and largest reward seen.
    """

    tier: str
    fresh_instance: bool
    deterministic: bool
    reason: str
    episodes: int
    steps: int
    capped: str
    longest: int
    truncated_at: tuple[int, ...]
    reward: tuple[float, float]


@dataclass
class Tape:
    """What happened in one episode: every arrival as bytes, the actions, and how it ended."""

    arrivals: list[bytes] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ended: bool = False
    truncated: bool = False


def measure_tier(make_env: Build, seed: int) -> TierReport:
    """Find the best tier that holds bit for bit, over several episodes of random actions.

    Snapshot: the state taken at several moments, put into newly built environments, gives the rest of the episode and
    the next one. Replay: an episode's seed and actions give it again, in a used environment or else in a newly built
    one. Boundary: neither, or environments that share what one of them cannot bring back.

    Args:
        make_env: builds one environment (from `rlcore.envs.make`).
        seed: of the probing; nothing of the run's own streams is drawn.

    Returns:
        The tier and how much was tried.

    Raises:
        EnvironmentFault: the environment raises under random actions.
    """
    spec = spec_of(make_env()).action
    tapes, capped = _first_pass(make_env, spec, seed)
    again = [_play(make_env, tape.actions, _seed(seed, e)) for e, tape in enumerate(tapes)]
    deterministic = all(a.arrivals == b.arrivals for a, b in zip(tapes, again, strict=True))
    reason = _no_snapshot(make_env, tapes, seed)
    used = _used_instance(make_env, tapes, seed)
    shared = _shared(make_env, tapes, seed) if deterministic else ""
    if shared:
        tier, fresh = "boundary", True
        reason = f"{reason}; {shared}" if reason else shared
    elif not reason:
        tier, fresh = "snapshot", used != ""
    elif deterministic:
        # Cut short by time, another try might have come further: what it would have found must not matter.
        tier, fresh = "replay", used != "" or capped == "seconds"
        reason += f"; {used}" if used else ""
    else:
        tier, fresh = "boundary", True
        reason += "; the same seed and actions gave another episode in a newly built environment"
    rewards = [r for tape in tapes for r in tape.rewards] or [0.0]
    return TierReport(
        tier,
        fresh and tier != "snapshot",
        deterministic,
        reason,
        len(tapes),
        sum(len(tape.actions) for tape in tapes),
        capped,
        max((len(tape.actions) for tape in tapes if tape.ended), default=0),
        tuple(sorted({len(tape.actions) for tape in tapes if tape.truncated})),
        (min(rewards), max(rewards)),
    )


def _first_pass(make_env: Build, spec: ActionSpec, seed: int) -> tuple[list[Tape], str]:
    """Episodes of random actions, each in a newly built environment, and what ended the pass."""
    in_time, left, tapes = _timer(), MAX_STEPS, []
    for episode in range(MAX_EPISODES):
        env, tape = make_env(), Tape()
        try:
            _explore(env, tape, spec, streams.generator(seed, "probe", 0, episode), episode, seed, left, in_time)
        except Exception as error:
            raise EnvironmentFault(
                f"this environment fails under random actions: episode {episode}, step {len(tape.actions)} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            env.close()
        tapes.append(tape)
        left -= len(tape.actions)
        if left <= 0:
            return tapes, "steps"
        if not in_time():
            return tapes, "seconds"
    return tapes, "episodes"


def _timer() -> Callable[[], bool]:
    """A function that says whether there is time left, from now on."""
    cpu, wall = time.process_time() + MAX_SECONDS, time.monotonic() + MAX_WAIT
    return lambda: time.process_time() < cpu and time.monotonic() < wall


def _explore(
    env: gymnasium.Env,
    tape: Tape,
    spec: ActionSpec,
    rng: np.random.Generator,
    episode: int,
    seed: int,
    left: int,
    in_time: Callable[[], bool],
) -> None:
    """Record one episode of random actions, until it ends or a limit is reached."""
    obs, _ = env.reset(seed=_seed(seed, episode))
    tape.arrivals.append(_bytes(obs, 0.0, False, False))
    held: list[Any] = []
    while not tape.ended and len(tape.actions) < left and in_time():
        hold = int(rng.integers(1, LONGEST_HOLD + 1)) if episode % 2 else 1
        held = held[1:] or [random_action(spec, rng)] * hold
        tape.actions.append(held[0])
        _step(env, held[0], tape)


def _play(make_env: Build, actions: list[Any], seed: int) -> Tape:
    """One episode in a newly built environment."""
    env = make_env()
    try:
        return _episode(env, actions, seed)
    finally:
        env.close()


def _episode(env: gymnasium.Env, actions: list[Any], seed: int | None) -> Tape:
    tape = Tape()
    obs, _ = env.reset(seed=seed)
    tape.arrivals.append(_bytes(obs, 0.0, False, False))
    for action in actions:
        _step(env, action, tape)
        if tape.ended:
            break
    return tape


def _used_instance(make_env: Build, tapes: list[Tape], seed: int) -> str:
    """Empty when one environment, used for all episodes, gives each as a new one did; else where it first did not."""
    if len(tapes) < 2:
        return "no second episode was reached that could show whether a used environment is as good as a new one"
    env = make_env()
    try:
        for episode, tape in [*enumerate(tapes), (0, tapes[0])]:
            played = _episode(env, tape.actions, _seed(seed, episode))
            if played.arrivals != tape.arrivals:
                step = _first_difference(played.arrivals, tape.arrivals)
                return f"a used environment differs from a new one at step {step} of episode {episode}"
    finally:
        env.close()
    return ""


def _shared(make_env: Build, tapes: list[Tape], seed: int) -> str:
    """Empty when two environments of one process, stepped in turn, each give what they gave alone; else what differed.

    Neither a snapshot nor a replay of one brings back what several of them have in common.
    """
    pair = [0, min(1, len(tapes) - 1)]
    envs, played = [make_env() for _ in pair], []
    try:
        for env, episode in zip(envs, pair, strict=True):
            obs, _ = env.reset(seed=_seed(seed, episode))
            played.append(Tape([_bytes(obs, 0.0, False, False)]))
        for step in range(max(len(tapes[episode].actions) for episode in pair)):
            for env, tape, episode in zip(envs, played, pair, strict=True):
                if step < len(tapes[episode].actions):
                    _step(env, tapes[episode].actions[step], tape)
    finally:
        for env in envs:
            env.close()
    for tape, episode in zip(played, pair, strict=True):
        if tape.arrivals != tapes[episode].arrivals:
            step = _first_difference(tape.arrivals, tapes[episode].arrivals)
            return f"two environments in one process influence each other, as at step {step} of episode {episode}"
    return ""


def _no_snapshot(make_env: Build, tapes: list[Tape], seed: int) -> str:
    """Empty when captured states continue exactly in newly built environments; else why not.

    The pass is that of training: seeded once, later episodes go on with the environment's own generator.
    """
    plan = [action for tape in tapes for action in tape.actions]
    moments = sorted({round(len(plan) * i / CAPTURES) for i in range(CAPTURES)} | _near_ends(tapes, len(plan)))
    env = make_env()
    try:
        env.reset(seed=_seed(seed, 0))
        if opaque := opaque_attribute(env):
            return f"{opaque} cannot be saved"
        quiet = _stream(make_env, plan, _seed(seed, 0), [])[0]
        try:
            stream, states = _stream(make_env, plan, _seed(seed, 0), moments)
        except _UnsavedError as opaque:
            return str(opaque)
        if quiet != stream:
            return "the same seed and actions gave another episode, or saving the state changed it"
        for moment, (state, done) in zip(moments, states, strict=True):
            difference = _continue(make_env, state, done, plan, stream, moment)
            if difference is not None:
                return f"a state saved at step {moment} went on differently at step {difference}"
    finally:
        env.close()
    return ""


class _UnsavedError(Exception):
    """An attribute that cannot be read has come up while the environment was stepped."""


def _near_ends(tapes: list[Tape], total: int) -> set[int]:
    """The last action of the first episode and the one before: where counters and the pending reset matter."""
    first = len(tapes[0].actions)
    return {moment for moment in (first - 1, first) if 0 <= moment < total}


def _stream(
    make_env: Build, plan: list[Any], seed: int, moments: list[int]
) -> tuple[list[bytes], list[tuple[State, bool]]]:
    """All arrivals of one environment that resets itself, and (state, done) before the actions of `moments`."""
    env = make_env()
    arrivals, states = [], []
    try:
        obs, _ = env.reset(seed=seed)
        arrivals.append(_bytes(obs, 0.0, False, False))
        done = False
        for index, action in enumerate(plan):
            if index in moments:
                state = capture(env)
                if state is None:
                    raise _UnsavedError(f"{opaque_attribute(env)} cannot be saved at step {index}")
                states.append((state, done))
            arrival, done = _autoreset(env, action, done)
            arrivals.append(arrival)
    finally:
        env.close()
    return arrivals, states


def _continue(
    make_env: Build, state: State, done: bool, plan: list[Any], stream: list[bytes], moment: int
) -> int | None:
    """The first step that differs after a state was put into a new environment; None to the end of the next episode."""
    env = make_env()
    try:
        restore(env, state)
        ends = 0
        for index in range(moment, len(plan)):
            arrival, done = _autoreset(env, plan[index], done)
            if arrival != stream[index + 1]:
                return index + 1
            ends += done
            if ends == 2:
                return None
    finally:
        env.close()
    return None


def _autoreset(env: gymnasium.Env, action: Any, done: bool) -> tuple[bytes, bool]:
    if done:
        obs, _ = env.reset()
        return _bytes(obs, 0.0, False, False), False
    obs, reward, terminated, truncated, _ = env.step(action)
    return _bytes(obs, float(reward), bool(terminated), bool(truncated)), bool(terminated or truncated)


def _step(env: gymnasium.Env, action: Any, tape: Tape) -> None:
    obs, reward, terminated, truncated, _ = env.step(action)
    tape.arrivals.append(_bytes(obs, float(reward), bool(terminated), bool(truncated)))
    tape.rewards.append(float(reward))
    tape.ended, tape.truncated = bool(terminated or truncated), bool(truncated)


def _bytes(obs: dict[str, Any], reward: float, terminated: bool, truncated: bool) -> bytes:
    parts = [np.asarray(value).tobytes() for value in obs.values()]
    return b"|".join([*parts, np.float64(reward).tobytes(), bytes([terminated, truncated])])


def _first_difference(left: list[bytes], right: list[bytes]) -> int:
    same = [a == b for a, b in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)


def _seed(seed: int, episode: int) -> int:
    return streams.integer(seed, "probe", 1, episode)


def random_action(spec: ActionSpec, rng: np.random.Generator) -> Any:
    """One uniformly random action in the environment's own form; unbounded elements of a Box are standard normal.

    Args:
        spec: of the action.
        rng: supplies the randomness.

    Returns:
        A Python integer for Discrete, else an array of the space's shape and dtype.
    """
    if spec.continuous:
        low, high = np.array(spec.low), np.array(spec.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0))
        flat = np.where(bounded, uniform, np.clip(rng.standard_normal(spec.size), low, high))
    else:
        flat = rng.integers(0, np.array(spec.nvec)) + np.array(spec.start)
    return flat.astype(spec.dtype).reshape(spec.shape) if spec.shape else int(flat[0])
