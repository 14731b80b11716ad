"""A policy playing in a window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlcore import streams
from rlcore.envs.make import make
from rlcore.judge.final import FILM_ROUND, actor, read
from rlcore.judge.policy import load_policy
from rlcore.store.directory import RunDirectory


def watch(run: RunDirectory, path: Path, episodes: int) -> Iterator[tuple[float, int]]:
    """Play episodes greedily before the user's eyes.

    Args:
        run: whose environment.
        path: the checkpoint's directory.
        episodes: how many.

    Yields:
        Return and length of each episode.
    """
    config, _ = read(run)
    act = actor(load_policy(path))
    env = make(config.env, render_mode="human")
    try:
        for episode in range(episodes):
            obs, _ = env.reset(seed=streams.integer(config.seed, "env_eval", FILM_ROUND, episode))
            total, length, done = 0.0, 0, False
            while not done and length < config.evaluation.max_episode_steps:
                obs, reward, terminated, truncated, _ = env.step(act(obs))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            yield total, length
    finally:
        env.close()
