"""Evaluation of an agent in the run's environment, on fixed seeds that training does not use."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rlcore import streams
from rlcore.config.run import RunConfig
from rlcore.envs.make import adapt_to_evaluation, suite_for
from rlcore.envs.seeds import EpisodeSeeds
from rlcore.envs.vector.choose import make_vector_env
from rlcore.evaluation.play import EpisodeRecorder, EvalResult, OnProgress, OnStep, playing
from rlcore.functional.noise import Noise
from rlcore.protocols import Agent
from rlcore.system.torch_switches import keeping_switches
from rlcore.user_code import user_code

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# The default limit of actions in an episode of an evaluation is algo.total_steps / SHARE, so that 100 episodes take no
# more steps than training, but at least one of these numbers of actions:
ORDINARY = 2_000  # if the environment limits its episodes itself; limits in Gymnasium are at most 2,000
ENDLESS = 1_000  # if the environment has no limit
SHARE = 100
log = logging.getLogger(__name__)


def episode_limit(config: RunConfig, card: dict[str, Any]) -> int | None:
    """Return the number of actions after which an evaluation truncates an episode.

    This limit is the config key `evaluation.max_episode_steps`. By default, it is proportional to `algo.total_steps`:
    some policies never end an episode, and their evaluation should not take longer than training.

    Args:
        config: config of the run.
        card: the environment card (measured properties of the environment).

    Returns:
        The limit. None if the environment already truncates every episode after this number of actions or earlier.
    """
    own: int | None = card["max_episode_steps"]
    limit = config.evaluation.max_episode_steps
    if limit is None:
        limit = max(ENDLESS if own is None else ORDINARY, (config.algo.total_steps or 0) // SHARE)
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
    """Evaluate an agent on N complete episodes with fixed environment seeds.

    The environment seed of an episode depends only on the seed of the run, `purpose`, `round` and the number of the
    episode, so that different agents can be compared on the same episodes.

    Args:
        agent: the agent; it is not changed.
        config: config of the run: environment, seed, and number of environments that are stepped together.
        card: the environment card (measured properties of the environment, such as its limit of steps).
        episodes: N; number of episodes.
        greedy: True: the most likely actions; False: samples.
        round: different values result in different environment seeds; evaluations during training use 0.
        purpose: random stream from which the environment seeds are drawn, a key of `rlcore.streams.PURPOSES`.
        fabric: device and precision of the agent; None: CPU, float32.
        on_step: called with every time step and the action that the agent chose after it.
        on_progress: called after every step with the number of finished episodes, and N.

    Returns:
        The result as a dict: mean, std, ci95 (95 % confidence interval of the mean), episodes, returns, mean_length,
        cut (number of episodes that were truncated by the step limit of evaluations, see `episode_limit`), and, with
        `env.info_keys`, info (name -> mean, std, ci95, episodes and values).
    """
    played = EpisodeRecorder(episodes)
    with keeping_switches():  # evaluation environments run in this process, even if those of training do not
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
    """Evaluate an agent on N complete episodes like `evaluate_agent`, and yield after every step of the environments.

    Args:
        agent: the agent.
        config: config of the run: environment and seed.
        card: the environment card (measured properties of the environment).
        episodes: N; number of episodes.
        num_envs: number of environments that are stepped together; it has no effect on the episodes. None:
            `evaluation.num_envs`.
        greedy: True: the most likely actions; False: samples.
        round: different values result in different environment seeds.
        purpose: random stream from which the environment seeds are drawn, a key of `rlcore.streams.PURPOSES`.
        fabric: device and precision of the agent; None: CPU, float32.
        on_step: called with every time step and the action that the agent chose after it.

    Yields:
        After every step, an object with the results of all episodes that have ended. The environments are closed when
        the generator ends or is closed.
    """
    env, limit = adapt_to_evaluation(config.env, config.evaluation.env_config), episode_limit(config, card)
    env = dataclasses.replace(env, sync_env=True)
    if limit is not None:
        env = dataclasses.replace(env, max_episode_steps=limit)
    suite, env_id = suite_for(env)
    instances = suite.free_instances(env_id)
    together = num_envs or config.evaluation.num_envs
    if card["tier"] == "boundary" and suite.batched(env_id, {}) is not None:
        together = episodes  # the later episodes of a copy would depend on the length of the earlier ones
    count = min(together, episodes, max(1, instances) if instances is not None else episodes)
    envs = make_vector_env(
        env,
        num_envs=count,
        seed=config.seed,
        tier="replay",
        fresh_instance=card["fresh_instance"],
        seeds=EpisodeSeeds(config.seed, purpose, (round,), stride=count),
        device="cpu" if fabric is None else fabric.device,
    )
    where: dict[str, Any] = {} if fabric is None else {"device": fabric.device, "autocast": fabric.autocast}
    indices, device = (round, streams.PURPOSES[purpose]), where.get("device", "cpu")
    rng = None if greedy else Noise(config.seed, "policy_eval", *indices, device=device)
    try:
        where |= {"on_step": on_step, "needs_allowed_action": config.algo.needs_allowed_action}
        yield from playing(agent, envs, episodes, rng, greedy=greedy, limit=limit, **where)
    finally:
        envs.close()


def warn_of_cut(result: EvalResult, config: RunConfig, card: dict[str, Any]) -> None:
    """Log a warning if episodes that have an end were truncated by the step limit of evaluations (`episode_limit`)."""
    if result.cut and not card.get("endless"):
        log.warning(
            "%d of %d episodes were truncated after %s steps (evaluation.max_episode_steps sets this limit; "
            "env.max_episode_steps truncates episodes in training too)",
            result.cut,
            len(result.returns),
            f"{episode_limit(config, card):,}",
        )
