"""Evaluation of checkpoints: the same numbers from the trainer, the command line and a test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlcore import streams
from rlcore.config.groups import RunConfig
from rlcore.envs.make import make
from rlcore.errors import UserError
from rlcore.judge.evaluation import evaluate_agent
from rlcore.judge.policy import Policy, load_policy
from rlcore.judge.video import headless_rendering, record
from rlcore.store.checkpoint import chosen
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from rlcore.store.run_config import config_of

FINAL_ROUND = 1  # other environment seeds than the evaluations that chose the best checkpoint
FILM_ROUND = 2
log = logging.getLogger(__name__)


def read(run: RunDirectory) -> tuple[RunConfig, dict[str, Any]]:
    """The config and the environment card of a run."""
    return config_of(run), run.read_card()


def evaluate_checkpoint(
    run: RunDirectory, path: Path, episodes: int, *, greedy: bool = True, round: int = FINAL_ROUND
) -> dict[str, Any]:
    """Play episodes 0..N-1 of a round with the policy of a checkpoint, on the CPU.

    Args:
        run: whose environment and seed.
        path: the checkpoint's directory.
        episodes: N.
        greedy: most likely actions instead of samples.
        round: set of environment seeds.

    Returns:
        mean, std, ci95, episodes, returns, mean_length.
    """
    config, card = read(run)
    agent = load_policy(path).agent
    return evaluate_agent(agent, config, card, episodes, greedy=greedy, round=round)


def final_evaluation(run: RunDirectory) -> dict[str, Any]:
    """Judge the run's chosen checkpoint, greedily and sampling, write it down, and record a video if asked.

    Args:
        run: trained to its end.

    Returns:
        The evaluation event: env_steps, final, greedy, stochastic, checkpoint, video.
    """
    config, _ = read(run)
    path = chosen(run)
    episodes = config.evaluation.final_episodes
    modes = {"greedy": True, "stochastic": False}
    results = {name: evaluate_checkpoint(run, path, episodes, greedy=greedy) for name, greedy in modes.items()}
    env_steps = int(path.name)
    video = film(run, path) if config.env.capture_video else None
    fields = {"checkpoint": str(path.relative_to(run.path)), "video": video, **results}
    write_json(run.evaluations / f"{env_steps}.json", {"env_steps": env_steps, **fields})
    return EventLog(run.events).append("evaluation", env_steps=env_steps, final=True, **fields)


def film(run: RunDirectory, path: Path, name: str = "policy.mp4", max_steps: int = 2000) -> str | None:
    """Record one greedy episode of a checkpoint.

    Args:
        run: whose environment.
        path: the checkpoint's directory.
        name: of the file in media/.
        max_steps: the episode is cut here.

    Returns:
        The video's path relative to the run, or None where the environment cannot be drawn (said in the log).
    """
    config, _ = read(run)
    try:
        headless_rendering()
        env = make(config.env, render_mode="rgb_array")
        try:
            seed = streams.integer(config.seed, "env_eval", FILM_ROUND, 0)
            record(actor(load_policy(path)), env, run.media / name, seed, max_steps)
        finally:
            env.close()
    except Exception as error:  # a picture is never worth a run
        log.warning("no video: %s", error if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        return None
    return str((run.media / name).relative_to(run.path))


def actor(policy: Policy) -> Callable[[dict[str, np.ndarray]], Any]:
    """A greedy callable from one observation dict to one action as an environment takes it: Discrete ones as int."""

    def act(obs: dict[str, np.ndarray]) -> Any:
        action = policy.predict(obs, greedy=True)
        return action.item() if action.ndim == 0 else action

    return act
