"""Evaluation of checkpoints, on other seeds than those they were chosen on; the last one of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.judge.evaluation import evaluate_agent
from rlcore.judge.film import film
from rlcore.judge.play import OnProgress, part_of
from rlcore.judge.policy import load_policy
from rlcore.store.checkpoint import chosen, manifest
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from rlcore.store.patience import patiently
from rlcore.store.run_config import config_of

FINAL_ROUND = 1  # of environment seeds; 0 is that of the evaluations that chose the best checkpoint


def evaluate_checkpoint(
    run: RunDirectory,
    path: Path,
    episodes: int,
    *,
    greedy: bool = True,
    round: int = FINAL_ROUND,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Play episodes 0..N-1 of a round with the policy of a checkpoint, on the CPU.

    Args:
        run: whose environment and seed.
        path: the checkpoint's directory, or an exported policy.
        episodes: N.
        greedy: most likely actions instead of samples.
        round: set of environment seeds.
        on_progress: as for `evaluate_agent`.

    Returns:
        As `evaluate_agent`.
    """
    agent = load_policy(path).agent
    return evaluate_agent(
        agent, config_of(run), run.read_card(), episodes, greedy=greedy, round=round, on_progress=on_progress
    )


def final_evaluation(run: RunDirectory, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Judge the run's chosen checkpoint, greedily and sampling, write it down, and record a video if asked.

    Args:
        run: trained to its end.
        on_progress: called with the number of episodes that have ended, and of all in both modes.

    Returns:
        The evaluation event: policy_steps, final, greedy, stochastic, checkpoint, video.
    """
    config, path = config_of(run), chosen(run)
    episodes, results = config.evaluation.final_episodes, {}
    for index, mode in enumerate(("greedy", "stochastic")):
        told = on_progress and part_of(on_progress, index, 2)
        results[mode] = evaluate_checkpoint(run, path, episodes, greedy=mode == "greedy", on_progress=told)
    policy_steps = manifest(path)["policy_steps"]
    video = film(run, path) if config.env.capture_video else None
    fields = {"checkpoint": str(path.relative_to(run.path)), "video": video, **results}
    place = run.evaluations / f"{policy_steps}.json"
    patiently(lambda: write_json(place, {"policy_steps": policy_steps, **fields}))
    return patiently(lambda: EventLog(run.events).append("evaluation", policy_steps=policy_steps, final=True, **fields))
