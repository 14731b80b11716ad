"""Evaluation of one agent on the run's environment: fixed seeds, disjoint from training by purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore import streams
from rlcore.config.groups import RunConfig
from rlcore.envs.vector.make import make_vector_env
from rlcore.judge.play import play
from rlcore.types import Agent, Arrival

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Watch = Callable[[Arrival, np.ndarray], None]


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
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Play episodes 0..N-1 of a round of evaluation.

    Args:
        agent: acts; unchanged.
        config: environment, seed and how many environments are stepped together.
        card: the environment card (tier, limit).
        episodes: N.
        greedy: most likely actions instead of samples.
        round: picks a set of environment seeds; 0 is the standing one, any other is fresh.
        purpose: stream of the environments' seeds.
        fabric: device and precision of the agent; None = CPU, float32.
        watch: called with every arrival and action.

    Returns:
        mean, std, ci95, episodes, returns, mean_length.
    """
    env = dataclasses.replace(config.env, sync_env=True)
    if card["max_episode_steps"] is None:
        env = dataclasses.replace(env, max_episode_steps=config.evaluation.max_episode_steps)
    count = min(config.evaluation.num_envs, episodes)
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
    rng = None if greedy else streams.generator(config.seed, "policy_eval", round, streams.PURPOSES[purpose])
    device = fabric.device if fabric is not None else "cpu"
    autocast = fabric.autocast if fabric is not None else nullcontext
    try:
        result = play(agent, envs, episodes, rng, greedy=greedy, device=device, autocast=autocast, watch=watch)
    finally:
        envs.close()
    return result.to_json()
