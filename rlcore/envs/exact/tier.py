"""Measurement of an environment's tier (its way of exact resume), by playing episodes and comparing bits."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import gymnasium

from rlcore.envs.exact.recording import (
    MAX_EPISODES,
    MAX_STEPS,
    Build,
    Recording,
    allowed_action,
    arrival_bytes,
    episode_seed,
    record_episode,
    record_episodes,
    timer,
)
from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.spaces import spec_of
from rlcore.errors import EnvironmentFault
from rlcore.types import State
from rlcore.user_code import is_failure

OTHER_SEEDS = 3  # seeds to compare before the report states that the seed has no effect
CAPTURES = 6  # snapshots that are restored in a new environment and continued to the end of the next episode
GLANCES = 64  # further snapshots, continued for `GLANCE` steps: an incomplete state can show in one of ten only
GLANCE = 4


@dataclass(frozen=True)
class TierReport:
    """Result of the measurement of a tier.

    Attributes:
        tier: "snapshot", "replay" or "boundary".
        fresh_instance: True if only a new environment gives the same episode from the same seed, or if too few steps
            were played to know.
        deterministic: True if the same seed and actions give the same episode.
        reason: why the environment does not have a better tier; "" for the best tier.
        episodes: number of recorded episodes.
        steps: number of actions in all episodes.
        capped: limit that ended the recording: "episodes", "steps", "seconds", or "failure".
        longest: length of the longest finished episode, in actions.
        truncated_at: lengths at which episodes were truncated.
        reward: smallest and largest reward.
        findings: notes for the author of the environment, one line each: a seed without effect, or state that survives
            a reset or is shared between instances.
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
    findings: tuple[str, ...] = ()


def measure_tier(make_env: Build, seed: int) -> TierReport:
    """Measure the best tier that is exact, bit for bit, over several episodes of random actions.

    Snapshot: states saved at several steps and restored in new environments reproduce the rest of the episode and the
    next one. States saved at many other steps and restored in a used environment reproduce the next steps. Replay: the
    seed and the actions of an episode reproduce it, in a used environment or in a new one. Boundary: neither of them,
    or environments of one process influence each other.

    Args:
        make_env: function that builds one environment (with `rlcore.envs.make`).
        seed: seed of the probe; the run's random streams are not used.

    Returns:
        The tier, and how much was played.

    Raises:
        EnvironmentFault: The environment raises under random actions.
    """
    with make_env() as env:
        spec = spec_of(env)
    episodes, capped = record_episodes(make_env, spec, seed)
    deterministic = _deterministic(make_env, episodes, seed)
    no_snapshot = _why_no_snapshot(make_env, episodes, seed)
    not_reusable = _why_not_reusable(make_env, episodes, seed)
    shared = _what_is_shared(make_env, episodes, seed) if deterministic else ""
    fresh, another = False, "the same seed and actions gave another episode in a new environment"
    if deterministic:
        findings = [_why_seedless(make_env, episodes[0], seed), not_reusable if len(episodes) > 1 else "", shared]
    else:
        findings = [f"reset(seed=...) does not make it deterministic: {another}"]
    if shared:
        tier, reasons = "boundary", [no_snapshot, shared]
    elif not no_snapshot:
        tier, reasons = "snapshot", []
    elif deterministic:
        tier, reasons = "replay", [no_snapshot, not_reusable]
        # If the time limit ended the recording, a longer one could find a difference: use new environments.
        fresh = not_reusable != "" or capped == "seconds"
    else:
        tier, reasons = "boundary", [no_snapshot, another]
    rewards = [r for episode in episodes for r in episode.rewards] or [0.0]
    return TierReport(
        tier=tier,
        fresh_instance=fresh or tier == "boundary",
        deterministic=deterministic,
        reason="; ".join(reason for reason in reasons if reason),
        episodes=len(episodes),
        steps=sum(len(episode.actions) for episode in episodes),
        capped=capped,
        longest=max((len(episode.actions) for episode in episodes if episode.ended), default=0),
        truncated_at=tuple(sorted({len(episode.actions) for episode in episodes if episode.truncated})),
        reward=(min(rewards), max(rewards)),
        findings=tuple(finding for finding in findings if finding),
    )


def try_boundary(make_env: Build, seed: int, reason: str) -> TierReport:
    """Test an environment whose suite declares tier "boundary".

    One episode is played, and its actions are repeated with the same seed (is it deterministic?) and with another seed
    (does the seed have an effect?).

    Args:
        make_env: function that builds one environment (with `rlcore.envs.make`); called once, because an engine can be
            slow to start.
        seed: seed of the probe.
        reason: why the environment has this tier.

    Returns:
        The report, with a finding if the other seed gave the same episode.

    Raises:
        EnvironmentFault: The environment raises under random actions.
    """
    with make_env() as env:
        played = record_episode(env, spec_of(env), seed, 0, MAX_STEPS, timer())
        again = _replay(env, played, episode_seed(seed, 0))
        other = _replay(env, played, episode_seed(seed, MAX_EPISODES))
    length = len(played.actions)
    return TierReport(
        tier="boundary",
        fresh_instance=False,
        deterministic=again == played.arrivals,
        findings=(_seedless("another seed"),) if again == played.arrivals and other == played.arrivals else (),
        reason=reason,
        episodes=1,
        steps=length,
        capped="episodes" if played.ended else "steps" if length == MAX_STEPS else "seconds",
        longest=length if played.ended else 0,
        truncated_at=(length,) if played.truncated else (),
        reward=(min(played.rewards, default=0.0), max(played.rewards, default=0.0)),
    )


def report_failing(error: Exception) -> TierReport:
    """Return a report for an environment that fails at times: tier "boundary", because it cannot be replayed."""
    message = str(error) if isinstance(error, EnvironmentFault) else f"{type(error).__name__}: {error}"
    return TierReport(
        tier="boundary",
        fresh_instance=True,
        deterministic=False,
        reason=message,
        episodes=0,
        steps=0,
        capped="failure",
        longest=0,
        truncated_at=(),
        reward=(0.0, 0.0),
        findings=(f"{message}; in training it is restarted (env.restart_on_exception)",),
    )


def _replay(env: gymnasium.Env, recorded: Recording, seed: int) -> list[bytes]:
    """Play the actions of a recorded episode from a seed; return its time steps as bytes."""
    again = Recording()
    again.reset(env, seed)
    for action in recorded.actions:
        again.try_step(env, action)
        if again.ended:
            break
    return again.arrivals


def _deterministic(make_env: Build, episodes: list[Recording], seed: int) -> bool:
    """Return True if every episode is reproduced in a new environment."""
    for index, recorded in enumerate(episodes):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, index)) != recorded.arrivals:
                return False
    return True


def _why_seedless(make_env: Build, recorded: Recording, seed: int) -> str:
    """Return a finding if other seeds give the same episode for the same actions; "" otherwise."""
    for number in range(OTHER_SEEDS):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, MAX_EPISODES + number)) != recorded.arrivals:
                return ""
    return _seedless(f"{OTHER_SEEDS} other seeds")


def _seedless(tried: str) -> str:
    return f"reset(seed=...) has no effect: {tried} gave the same episode for the same actions"


def _why_not_reusable(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Return the first difference between a used environment and new ones; "" if all episodes are equal."""
    if len(episodes) < 2:
        return "no second episode was reached, so a used environment could not be compared with a new one"
    with make_env() as env:
        for index, recorded in [*enumerate(episodes), (0, episodes[0])]:
            arrivals = _replay(env, recorded, episode_seed(seed, index))
            if arrivals != recorded.arrivals:
                step = _first_difference(arrivals, recorded.arrivals)
                return f"a used environment differs from a new one at step {step} of episode {index}"
    return ""


def _what_is_shared(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Return the first difference if two environments of one process influence each other; "" otherwise.

    The two are stepped in turn and compared with the recordings. Neither a snapshot nor a replay restores state that
    environments share.
    """
    pair = [0, min(1, len(episodes) - 1)]
    both = [Recording() for _ in pair]
    with ExitStack() as stack:
        envs = [stack.enter_context(make_env()) for _ in pair]
        for env, again, index in zip(envs, both, pair, strict=True):
            again.reset(env, episode_seed(seed, index))
        for step in range(max(len(episodes[index].actions) for index in pair)):
            for env, again, index in zip(envs, both, pair, strict=True):
                if step < len(episodes[index].actions):
                    again.try_step(env, episodes[index].actions[step])
    for again, index in zip(both, pair, strict=True):
        if again.arrivals != episodes[index].arrivals:
            step = _first_difference(again.arrivals, episodes[index].arrivals)
            return (
                f"two environments in one process influence each other, for example at step {step} of episode {index}"
            )
    return ""


def _why_no_snapshot(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Return why captured states do not continue exactly in other environments; "" if they do.

    As in training, the environment is seeded once, and later episodes use its own generator.
    """
    plan = [action for recorded in episodes for action in recorded.actions]
    moments = {round(len(plan) * i / CAPTURES) for i in range(CAPTURES)}
    # Also at the end of the first episode and one action before it, to test counters and the pending reset.
    first = len(episodes[0].actions)
    moments |= {moment for moment in (first - 1, first) if 0 <= moment < len(plan)}
    glances = {round(len(plan) * (i + 0.5) / GLANCES) for i in range(GLANCES)} - moments - {len(plan)}
    first_seed = episode_seed(seed, 0)
    with make_env() as env:
        env.reset(seed=first_seed)
        try:
            capture(env)
        except OpaqueStateError as opaque:
            return f"{opaque} cannot be saved"
        undisturbed, _, _ = _play_through(make_env, plan, first_seed, set())
        try:
            arrivals, states, plan = _play_through(make_env, plan, first_seed, moments | glances)
        except OpaqueStateError as opaque:
            return str(opaque)
        if undisturbed != arrivals:
            return "the same seed and actions gave another episode, or saving the state changed the environment"
        with make_env() as used:
            for moment, (state, done) in states.items():
                long = moment in moments
                with make_env() if long else nullcontext(used) as other:
                    ahead = plan if long else plan[: moment + GLANCE]
                    difference = _continue(other, state, done, ahead, arrivals, moment)
                if difference is not None:
                    return f"a state saved at step {moment} continued differently at step {difference}"
    return ""


def _play_through(
    make_env: Build, plan: list[Any], seed: int, moments: set[int]
) -> tuple[list[bytes], dict[int, tuple[State, bool]], list[Any]]:
    """Play planned actions in one environment, with autoreset.

    Return the time steps as bytes, the (state, done) before the actions at `moments`, and the actions taken. An action
    that the masks of an observation forbid is replaced by an allowed one.
    """
    states: dict[int, tuple[State, bool]] = {}
    with make_env() as env:
        spec, (obs, _) = spec_of(env), env.reset(seed=seed)
        arrivals, taken, done = [arrival_bytes(obs)], [], False
        for index, action in enumerate(plan):
            if index in moments:
                try:
                    states[index] = (capture(env), done)
                except OpaqueStateError as opaque:
                    raise OpaqueStateError(f"{opaque} cannot be saved at step {index}") from None
            taken.append(action if done else allowed_action(action, spec, obs))
            obs, arrival, done = _step_or_reset(env, taken[-1], done)
            arrivals.append(arrival)
    return arrivals, states, taken


def _continue(
    env: gymnasium.Env, state: State, done: bool, plan: list[Any], arrivals: list[bytes], moment: int
) -> int | None:
    """Restore a state and continue to the end of the next episode; return the first step that differs, or None."""
    restore(env, state)
    ends = 0
    for index in range(moment, len(plan)):
        try:
            _, arrival, done = _step_or_reset(env, plan[index], done)
        except BaseException as error:  # the episode differs, so the action can be invalid
            if not is_failure(error):
                raise
            return index + 1
        if arrival != arrivals[index + 1]:
            return index + 1
        ends += done
        if ends == 2:
            return None
    return None


def _step_or_reset(env: gymnasium.Env, action: Any, done: bool) -> tuple[dict[str, Any], bytes, bool]:
    if done:
        obs, _ = env.reset()
        return obs, arrival_bytes(obs), False
    obs, reward, terminated, truncated, _ = env.step(action)
    arrival = arrival_bytes(obs, float(reward), bool(terminated), bool(truncated))
    return obs, arrival, bool(terminated or truncated)


def _first_difference(left: list[bytes], right: list[bytes]) -> int:
    same = [a == b for a, b in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)
