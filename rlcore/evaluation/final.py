"""Evaluation of checkpoints after training, and the final evaluation of a run.

The environment seeds differ from those of evaluations during training, which select the best checkpoint. Otherwise the
result of the selected checkpoint would be biased.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlcore.evaluation.evaluation import evaluate_agent, play_round, warn_of_cut
from rlcore.evaluation.play import EpisodeRecorder, OnProgress, part_of
from rlcore.evaluation.policy import load_policy
from rlcore.evaluation.video import record_video
from rlcore.store.checkpoint import choose, manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from rlcore.store.retry import retry
from rlcore.user_code import user_code

TOGETHER = 10  # environments per policy in `side_by_side`; few, because the first episodes may be enough
FINAL_ROUND = 1  # set of environment seeds; evaluations during training, which choose the best checkpoint, use 0


def evaluate_checkpoint(
    run: RunDirectory,
    path: Path,
    episodes: int,
    *,
    greedy: bool = True,
    round: int = FINAL_ROUND,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Evaluate the policy of a checkpoint on N complete episodes with fixed environment seeds, on the CPU.

    Args:
        run: run directory; its config defines environment and seed.
        path: the checkpoint's directory, or a policy folder.
        episodes: N; number of episodes.
        greedy: True: the most likely actions; False: samples.
        round: different values result in different environment seeds.
        on_progress: called after every step with the number of finished episodes, and N.

    Returns:
        The result as a dict with mean, std, ci95, episodes, returns, mean_length and cut (see `evaluate_agent`).
    """
    agent = load_policy(path).agent
    return evaluate_agent(
        agent, config_of(run), run.read_card(), episodes, greedy=greedy, round=round, on_progress=on_progress
    )


@user_code()
def side_by_side(
    run: RunDirectory,
    paths: Sequence[Path],
    episodes: int,
    enough: Callable[[list[list[float]]], bool],
    *,
    round: int,
    on_progress: OnProgress | None = None,
) -> list[dict[str, Any]]:
    """Evaluate several policies with greedy actions on the same episodes, on the CPU, until the results are sufficient.

    All policies advance together: each one takes a step in its own environments, then the next one does. Results are
    compared on the first n episodes, where n is the largest number for which all policies have finished the episodes 0
    to n - 1.

    Args:
        run: run directory; its config defines environment and seed.
        paths: checkpoints' directories or policy folders.
        episodes: maximum number of episodes per policy.
        enough: function that is called after every step and stops the evaluation by returning True. Its argument has
            one list for each policy: the returns of the first n episodes.
        round: different values result in different environment seeds.
        on_progress: called after every step with the number of finished episodes and the maximum number, both summed
            over policies.

    Returns:
        For each policy, the result of the first n episodes (a dict, see `evaluate_agent`); [] if n is 0.
    """
    config, card = config_of(run), run.read_card()
    agents = [load_policy(path).agent for path in paths]
    plays = [play_round(agent, config, card, episodes, num_envs=TOGETHER, round=round) for agent in agents]
    records, both = [EpisodeRecorder(episodes) for _ in plays], 0
    try:
        while both < episodes:
            records = [next(play, record) for play, record in zip(plays, records, strict=True)]
            both = min(record.first for record in records)
            if on_progress is not None:
                on_progress(sum(len(record.done) for record in records), episodes * len(records))
            if enough([[record.done[i][0] for i in range(both)] for record in records]):
                break
    finally:
        for play in plays:
            play.close()
    results = [record.result(both) for record in records] if both else []
    for result in results:
        warn_of_cut(result, config, card)
    return [result.to_json() for result in results]


def final_evaluation(run: RunDirectory, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Evaluate the run's best checkpoint, first with greedy and then with sampled actions, and store the result.

    If `env.capture_video` is true, also record a video.

    Args:
        run: run directory; its training must have ended.
        on_progress: called with the number of finished episodes and the total number of episodes, both summed over
            greedy and sampled actions.

    Returns:
        The stored result: greedy and stochastic (dicts, see `evaluate_agent`), policy_steps, checkpoint, video (path or
        None), and final (True).
    """
    config, path = config_of(run), choose(run)
    episodes, results = config.final_episodes, {}
    for index, mode in enumerate(("greedy", "stochastic")):
        report = on_progress and part_of(on_progress, index, 2)
        results[mode] = evaluate_checkpoint(run, path, episodes, greedy=mode == "greedy", on_progress=report)
    policy_steps = manifest(path)["policy_steps"]
    video = record_video(run, path) if config.env.capture_video else None
    fields = {"checkpoint": str(path.relative_to(run.path)), "video": video, **results}
    place = run.evaluations / f"{policy_steps}.json"
    retry(lambda: write_json(place, {"policy_steps": policy_steps, **fields}))
    return retry(lambda: EventLog(run.events).append("evaluation", policy_steps=policy_steps, final=True, **fields))
