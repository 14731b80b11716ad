"""Measurement of an environment's tier: the method by which unfinished episodes continue exactly in a resumed run.

"snapshot": the state of the environment is saved and restored. "replay": the unfinished episode is played again from
its seed and actions. "boundary": neither is exact, so unfinished episodes are truncated at every checkpoint.
"""

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
    episode_seed,
    record_episode,
    record_episodes,
    time_step_bytes,
    timer,
)
from rlcore.envs.exact.state import OpaqueStateError, capture, restore
from rlcore.envs.spaces import spec_of
from rlcore.errors import EnvironmentFault
from rlcore.types import State
from rlcore.user_code import is_failure

OTHER_SEEDS = 3  # if the episodes of this many other seeds are the same, the report states that the seed has no effect
CAPTURES = 6  # snapshots that are restored in a new environment and continued to the end of the next episode
GLANCES = 64  # more snapshots, continued for `GLANCE` steps; an incomplete state may cause an error in one of ten only
GLANCE = 4


@dataclass(frozen=True)
class TierReport:
    """Result of the measurement of an environment's tier: the method by which unfinished episodes are resumed exactly.

    Attributes:
        tier: "snapshot" (the state is saved), "replay" (the episode is played again from its seed and actions) or
            "boundary" (unfinished episodes are truncated at checkpoints).
        fresh_instance: True if every episode of a run must be played in a newly built environment, because a used
            environment gives other episodes for the same seed. Also True if too few steps were recorded to know.
        deterministic: True if the same seed and actions give the same episode.
        reason: reason why a better tier is not possible; "" for the best tier, "snapshot".
        episodes: number of recorded episodes.
        steps: number of actions in all episodes.
        capped: limit at which the recording stopped ("episodes", "steps" or "seconds"), or "failure" if the environment
            raised an error.
        longest: number of actions in the longest finished episode; 0 if no episode was finished.
        truncated_at: numbers of actions after which episodes were truncated.
        reward: smallest and largest reward of all recorded steps.
        findings: messages for the author of the environment, one line each: the seed has no effect, or state is kept
            after a reset or shared between instances.
        without_action: number of states in which action masks allowed no action.
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
    without_action: int = 0


def measure_tier(make_env: Build, seed: int) -> TierReport:
    """Measure the best tier of an environment: the method by which unfinished episodes continue exactly on resume.

    Episodes of random actions are recorded, played again and compared bit for bit. The tiers, from best to worst, and
    the condition for each of them:

    - snapshot: a saved state continues exactly. For the test, states are saved at several steps and restored in new
      environments. Each new environment must reproduce the rest of the episode and the next episode. States of many
      more steps are restored in one environment, one after another, which must reproduce the next few steps.
    - replay: an environment reproduces the episode if it gets the same seed and actions. A used environment is tried as
      well as a new one.
    - boundary: neither a snapshot nor a replay is exact, or environments in one process influence each other.

    Args:
        make_env: function that builds one environment (with `rlcore.envs.make`).
        seed: seed from which the actions and the seeds of all episodes are derived. The random streams of training are
            not used.

    Returns:
        The report: the tier, the reason for it, and the number of recorded episodes and steps.

    Raises:
        EnvironmentFault: The environment raises an error under random actions.
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
    """Test an environment whose suite declares the tier "boundary" (unfinished episodes are truncated at checkpoints).

    One episode of random actions is recorded. The recorded actions are then played again twice: with the same seed, to
    see if the environment is deterministic, and with another seed, to see if the seed has an effect.

    Args:
        make_env: function that builds one environment (with `rlcore.envs.make`). It is called only once, because an
            engine can be slow to start.
        seed: seed from which the actions and the seeds of the episodes are derived.
        reason: reason that the suite gives for the tier.

    Returns:
        The report. If the other seed gave the same episode, `findings` has a message about this.

    Raises:
        EnvironmentFault: The environment raises an error under random actions.
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
    """Return the report for an environment that sometimes raises an error.

    Its episodes cannot be replayed reliably, so its tier is "boundary": unfinished episodes are truncated at
    checkpoints.
    """
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
    """Reset an environment with a seed and play the actions of a recorded episode.

    Return the results of reset and of every step as bytes (`Recording.arrivals`).
    """
    again = Recording()
    again.reset(env, seed)
    for action in recorded.actions:
        again.try_step(env, action)
        if again.ended:
            break
    return again.arrivals


def _deterministic(make_env: Build, episodes: list[Recording], seed: int) -> bool:
    """Return True if a new environment reproduces every recorded episode."""
    for index, recorded in enumerate(episodes):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, index)) != recorded.arrivals:
                return False
    return True


def _why_seedless(make_env: Build, recorded: Recording, seed: int) -> str:
    """Return a message for the report if other seeds give the same episode for the same actions; "" otherwise."""
    for number in range(OTHER_SEEDS):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, MAX_EPISODES + number)) != recorded.arrivals:
                return ""
    return _seedless(f"{OTHER_SEEDS} other seeds")


def _seedless(tried: str) -> str:
    return f"reset(seed=...) has no effect: {tried} gave the same episode for the same actions"


def _why_not_reusable(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Return a message that names the first difference between episodes in a used environment and in new ones.

    Return "" if there is no difference, so that one environment can be used for several episodes.
    """
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
    """Return a message if two environments in one process influence each other; otherwise "".

    Two environments are stepped alternately, and each is compared with its recording. The message names the first step
    that differs. If environments share state, neither a snapshot nor a replay of one environment can restore it.
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
    """Return the reason why the tier "snapshot" is not possible; "" if saved states continue exactly.

    The environment gets a seed only for the first episode. Later episodes continue the environment's random generator,
    as in training with this tier.
    """
    plan = [action for recorded in episodes for action in recorded.actions]
    moments = {round(len(plan) * i / CAPTURES) for i in range(CAPTURES)}
    # States are also saved at the end of the first episode and one action before it: this tests counters and autoreset.
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
    """Play the actions `plan` in one environment, with autoreset, and save its state at some steps.

    An action that the masks of an observation forbid is replaced by an allowed one.

    Args:
        make_env: function that builds the environment.
        plan: actions; the action after the end of an episode is ignored, because the environment is reset instead.
        seed: seed of the first reset.
        moments: indices of actions before which the state is saved.

    Returns:
        A tuple of three: the results of the first reset and of every step, as bytes; for each index in `moments`, the
        state before this action and True if the episode had ended; the actions that were taken.
    """
    states: dict[int, tuple[State, bool]] = {}
    with make_env() as env:
        spec, (obs, _) = spec_of(env), env.reset(seed=seed)
        arrivals, taken, done = [time_step_bytes(obs)], [], False
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
    """Restore a saved state, and play the remaining actions of `plan` up to the end of the next episode.

    Args:
        env: environment in which the state is restored.
        state: the saved state.
        done: True if the episode had ended when the state was saved.
        plan: actions.
        arrivals: results of the first reset and of every step as bytes, from the environment that was not interrupted.
        moment: index of the action before which the state was saved.

    Returns:
        Number of the first step with another result than `arrivals`; None if all results are equal.
    """
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
        return obs, time_step_bytes(obs), False
    obs, reward, terminated, truncated, _ = env.step(action)
    arrival = time_step_bytes(obs, float(reward), bool(terminated), bool(truncated))
    return obs, arrival, bool(terminated or truncated)


def _first_difference(left: list[bytes], right: list[bytes]) -> int:
    same = [a == b for a, b in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)
