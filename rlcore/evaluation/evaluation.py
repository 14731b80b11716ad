"""Evaluation of an agent in the run's environment, on fixed seeds that training does not use."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rlcore import streams
from rlcore.config.groups import RunConfig
from rlcore.envs.make import adapt_to_evaluation, suite_for
from rlcore.envs.vector.choose import make_vector_env
from rlcore.evaluation.play import EpisodeRecorder, EvalResult, OnProgress, OnStep, playing
from rlcore.functional.noise import Noise
from rlcore.protocols import Agent
from rlcore.system.torch_switches import keeping_switches
from rlcore.user_code import user_code

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ORDINARY = 2_000  # actions; minimum limit if the environment has its own, which is at most 2,000 in Gymnasium
ENDLESS = 1_000  # actions; minimum limit if the environment has none
SHARE = 100  # the limit is at least algo.total_steps / SHARE, so that 100 episodes cost no more than training
log = logging.getLogger(__name__)


def episode_limit(config: RunConfig, card: dict[str, Any]) -> int | None:
    """Return the number of actions after which an evaluation truncates an episode.

    It is `evaluation.max_episode_steps`, or by default proportional to the training budget. An evaluation of a policy
    that never ends an episode thus takes no longer than training.

    Args:
        config: config of the run.
        card: the environment card.

    Returns:
        The limit, or None if the limit of the environment is not larger.
    """
    own: int | None = card["max_episode_steps"]
    limit = config.evaluation.max_episode_steps
    if limit is None:
        limit = max(ENDLESS if own is None else ORDINARY, config.algo.total_steps // SHARE)
    return limit if own is None or limit < own else None


@user_code()
def evaluate_agent(
    agent: Agent,
    config: RunConfig,
    card: dict[str, Any],
    episodes: int,
    *,
    greedy: bool = True,
    round: int = 0,
    purpose: str = "env_eval",
    fabric: Fabric | None = None,
    on_step: OnStep | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Evaluate an agent on episodes 0..N-1 of a round.

    Args:
        agent: the agent; it is not changed.
        config: environment, seed and number of environments that are stepped together.
        card: the environment card (tier, limit).
        episodes: N.
        greedy: most likely actions instead of samples.
        round: number of the set of environment seeds; evaluations during training use 0.
        purpose: random stream of the environment seeds.
        fabric: device and precision of the agent; None: CPU, float32.
        on_step: called with every time step and action.
        on_progress: called after every step with the number of finished episodes, and N.

    Returns:
        mean, std, ci95, episodes, returns, mean_length, cut (number of episodes that the limit truncated).
    """
    played = EpisodeRecorder(episodes)
    with keeping_switches():  # these environments are in this process even if those of training are not
        for played in play_round(
            agent, config, card, episodes, greedy=greedy, round=round, purpose=purpose, fabric=fabric, on_step=on_step
        ):
            if on_progress is not None:
                on_progress(len(played.done), episodes)
    result = played.result()
    warn_of_cut(result, config, card)
    return result.to_json()


def play_round(
    agent: Agent,
    config: RunConfig,
    card: dict[str, Any],
    episodes: int,
    *,
    num_envs: int | None = None,
    greedy: bool = True,
    round: int = 0,
    purpose: str = "env_eval",
    fabric: Fabric | None = None,
    on_step: OnStep | None = None,
) -> Generator[EpisodeRecorder]:
    """Run the episodes of a round step by step; see `evaluate_agent`.

    Args:
        agent: the agent.
        config: environment and seed.
        card: the environment card.
        episodes: N.
        num_envs: number of environments stepped together, which changes no episode; None: `evaluation.num_envs`.
        greedy: most likely actions instead of samples.
        round: number of the set of environment seeds.
        purpose: random stream of the environment seeds.
        fabric: device and precision of the agent; None: CPU, float32.
        on_step: called with every time step and action.

    Yields:
        The record of episodes after every step. The environments are closed when the generator ends or is closed.
    """
    env, limit = dataclasses.replace(adapt_to_evaluation(config.env), sync_env=True), episode_limit(config, card)
    if limit is not None:
        env = dataclasses.replace(env, max_episode_steps=limit)
    suite, env_id = suite_for(env)
    instances = suite.free_instances(env_id)
    count = min(
        num_envs or config.evaluation.num_envs, episodes, max(1, instances) if instances is not None else episodes
    )
    envs = make_vector_env(
        env,
        num_envs=count,
        seed=config.seed,
        tier="replay",
        fresh_instance=card["fresh_instance"],
        episode_seed=lambda env_index, episode_index: streams.integer(
            config.seed, purpose, round, env_index + episode_index * count
        ),
    )
    where: dict[str, Any] = {} if fabric is None else {"device": fabric.device, "autocast": fabric.autocast}
    indices, device = (round, streams.PURPOSES[purpose]), where.get("device", "cpu")
    rng = None if greedy else Noise(config.seed, "policy_eval", *indices, device=device)
    try:
        yield from playing(agent, envs, episodes, rng, greedy=greedy, limit=limit, on_step=on_step, **where)
    finally:
        envs.close()


def warn_of_cut(result: EvalResult, config: RunConfig, card: dict[str, Any]) -> None:
    """Log a warning if the limit of the evaluation truncated episodes."""
    if result.cut:
        log.warning(
            "%d of %d episodes were truncated after %s steps (evaluation.max_episode_steps sets this limit; "
            "env.max_episode_steps truncates episodes in training too)",
            result.cut,
            len(result.returns),
            f"{episode_limit(config, card):,}",
        )
