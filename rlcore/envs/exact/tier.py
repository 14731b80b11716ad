"""Find the way of exact resume that holds for an environment, by playing whole episodes and comparing bits."""

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

OTHER_SEEDS = 3  # tried before a seed is said to change nothing
CAPTURES = 6  # moments at which a snapshot is taken and continued in a new environment to the next episode's end
GLANCES = 64  # further ones, continued for a few steps: what a state lacks may show in one of ten
GLANCE = 4  # steps


@dataclass(frozen=True)
class TierReport:
    """Findings about a way of exact resume.

    Attributes:
        tier: "snapshot", "replay" or "boundary".
        fresh_instance: only a newly built environment gives the same episode from the same seed, or too little was
            played to be sure that a used one does.
        deterministic: the same seed and actions give the same episode.
        reason: why it is not a better tier, "" when it is the best.
        episodes: how many were recorded.
        steps: actions in all of them.
        capped: which limit ended them: "episodes", "steps", "seconds", or "failure".
        longest: length of the longest finished episode, in actions.
        truncated_at: lengths at which episodes were truncated.
        reward: smallest and largest reward seen.
        findings: what an author may not know of it, a line each: a seed that changes nothing, what outlasts an episode
            or lies outside of the instance.
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
    """Find the best tier that holds bit for bit, over several episodes of random actions.

    Snapshot: the state taken at several moments, put into newly built environments, gives the rest of the episode and
    the next one; that of many others, put into a used one, the next steps. Replay: an episode's seed and actions give
    it again, in a used environment or else in a newly built one. Boundary: neither, or environments that share what
    one of them cannot bring back.

    Args:
        make_env: builds one environment (from `rlcore.envs.make`).
        seed: of the probing; nothing of the run's own streams is drawn.

    Returns:
        The tier and how much was tried.

    Raises:
        EnvironmentFault: the environment raises under random actions.
    """
    with make_env() as env:
        spec = spec_of(env)
    episodes, capped = record_episodes(make_env, spec, seed)
    deterministic = _deterministic(make_env, episodes, seed)
    no_snapshot = _why_no_snapshot(make_env, episodes, seed)
    not_reusable = _why_not_reusable(make_env, episodes, seed)
    shared = _what_is_shared(make_env, episodes, seed) if deterministic else ""
    fresh, another = False, "the same seed and actions gave another episode in a newly built environment"
    if deterministic:
        findings = [_why_seedless(make_env, episodes[0], seed), not_reusable if len(episodes) > 1 else "", shared]
    else:
        findings = [f"reset(seed=...) decides too little: {another}"]
    if shared:
        tier, reasons = "boundary", [no_snapshot, shared]
    elif not no_snapshot:
        tier, reasons = "snapshot", []
    elif deterministic:
        tier, reasons = "replay", [no_snapshot, not_reusable]
        # Where time ended the recording, another try might come further and find more: play safe.
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
    """Try an environment that is known to be of tier "boundary": an episode, and its actions again from two seeds.

    The same seed tells whether it gives the same episode, another one whether it changes anything.

    Args:
        make_env: builds one environment (from `rlcore.envs.make`); called once, since an engine may start slowly.
        seed: of the probing.
        reason: why it is of that tier.

    Returns:
        The tier, whether the same seed gave the same, and the finding that another one did too.

    Raises:
        EnvironmentFault: the environment raises under random actions.
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
    """Report an environment that fails now and then: of tier "boundary", for nothing of it can be played again."""
    told = str(error) if isinstance(error, EnvironmentFault) else f"{type(error).__name__}: {error}"
    return TierReport(
        tier="boundary",
        fresh_instance=True,
        deterministic=False,
        reason=told,
        episodes=0,
        steps=0,
        capped="failure",
        longest=0,
        truncated_at=(),
        reward=(0.0, 0.0),
        findings=(f"{told}; env.restart_on_exception answers that",),
    )


def _replay(env: gymnasium.Env, recorded: Recording, seed: int) -> list[bytes]:
    """The arrivals of a recorded episode's seed and actions, played again."""
    again = Recording()
    again.reset(env, seed)
    for action in recorded.actions:
        again.try_step(env, action)
        if again.ended:
            break
    return again.arrivals


def _deterministic(make_env: Build, episodes: list[Recording], seed: int) -> bool:
    """Tell whether every episode comes out the same in another newly built environment."""
    for index, recorded in enumerate(episodes):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, index)) != recorded.arrivals:
                return False
    return True


def _why_seedless(make_env: Build, recorded: Recording, seed: int) -> str:
    """Empty when an episode's actions give another one from another seed; else that they do not."""
    for number in range(OTHER_SEEDS):
        with make_env() as env:
            if _replay(env, recorded, episode_seed(seed, MAX_EPISODES + number)) != recorded.arrivals:
                return ""
    return _seedless(f"{OTHER_SEEDS} other seeds")


def _seedless(tried: str) -> str:
    return f"reset(seed=...) changes nothing: {tried} gave the same episode for the same actions"


def _why_not_reusable(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Empty when one environment, used for all episodes, gives each as a new one did; else where it first did not."""
    if len(episodes) < 2:
        return "no second episode was reached that could show whether a used environment is as good as a new one"
    with make_env() as env:
        for index, recorded in [*enumerate(episodes), (0, episodes[0])]:
            arrivals = _replay(env, recorded, episode_seed(seed, index))
            if arrivals != recorded.arrivals:
                step = _first_difference(arrivals, recorded.arrivals)
                return f"a used environment differs from a new one at step {step} of episode {index}"
    return ""


def _what_is_shared(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Empty when two environments of one process, stepped in turn, each give what they gave alone; else what differed.

    Neither a snapshot nor a replay of one brings back what several of them have in common.
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
            return f"two environments in one process influence each other, as at step {step} of episode {index}"
    return ""


def _why_no_snapshot(make_env: Build, episodes: list[Recording], seed: int) -> str:
    """Empty when captured states continue exactly in newly built environments; else why not.

    Played as in training: seeded once, later episodes go on with the environment's own generator.
    """
    plan = [action for recorded in episodes for action in recorded.actions]
    moments = {round(len(plan) * i / CAPTURES) for i in range(CAPTURES)}
    # At the first episode's end, and one action before: counters and the pending reset matter there.
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
            return "the same seed and actions gave another episode, or saving the state changed it"
        with make_env() as used:
            for moment, (state, done) in states.items():
                long = moment in moments
                with make_env() if long else nullcontext(used) as other:
                    ahead = plan if long else plan[: moment + GLANCE]
                    difference = _continue(other, state, done, ahead, arrivals, moment)
                if difference is not None:
                    return f"a state saved at step {moment} went on differently at step {difference}"
    return ""


def _play_through(
    make_env: Build, plan: list[Any], seed: int, moments: set[int]
) -> tuple[list[bytes], dict[int, tuple[State, bool]], list[Any]]:
    """All arrivals of one environment that resets itself, (state, done) before the actions of `moments`, the actions.

    These are the planned ones, but for those that the masks of an observation do not allow there.
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
    """The first step that differs after a state was put into an environment; None to the end of the next episode."""
    restore(env, state)
    ends = 0
    for index in range(moment, len(plan)):
        try:
            _, arrival, done = _step_or_reset(env, plan[index], done)
        except BaseException as error:  # it went on differently, so that this action is not allowed
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
