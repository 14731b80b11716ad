"""A new version beside the champion: the same fresh episodes, in turns, until it is clear who is better."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import models as registry
from flows.registry.gate import EPISODES, GateVerdict, compare_pairs, foresee
from flows.report.command_lines import bin_folder, short_path
from flows.report.sentences import duration
from rlcore.judge import final
from rlcore.judge.play import OnProgress
from rlcore.judge.policy import load_policy
from rlcore.store.directory import RunDirectory
from rlcore.store.events import last_event, read_events
from rlcore.store.run_config import config_of
from rlcore.store.series import WALL, lines

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

Working = Callable[[str], OnProgress]
LOOK_EVERY = 10  # episodes of both


def against_champion(
    client: MlflowClient,
    run: RunDirectory,
    checkpoint: Path,
    version: ModelVersion,
    champion: ModelVersion,
    working: Working,
) -> tuple[dict[str, Any], GateVerdict | str]:
    """Play a version beside the champion, on seeds that neither was trained, selected or judged on.

    Args:
        client: of the registry.
        run: the version's.
        checkpoint: the version's.
        version: the new one.
        champion: the one that is there.
        working: from what is done to what is told how many episodes have ended.

    Returns:
        The version's figures, empty where the time was over before an episode; the verdict, or what is missing for one.
    """
    pair, number = int(champion.version) + int(version.version), int(version.version)
    seeds = 2 + pair * (pair + 1) // 2 + number  # of this pair alone (Cantor), above those of training and its end
    folder = registry.fetch_policy(client, champion)
    ours, theirs = load_policy(checkpoint), load_policy(folder)
    same_obs = {k: ours.spec.obs.get(k) for k in theirs.obs_keys} == {k: theirs.spec.obs[k] for k in theirs.obs_keys}
    if not same_obs or ours.spec.action != theirs.spec.action:
        return play_alone(run, checkpoint, seeds, working("evaluating the new version")), "a champion of other spaces"
    name, total = f"champion version {champion.version}", most_episodes(run)
    random, limit = _random(run), _limit(run)
    results = final.side_by_side(
        run,
        [checkpoint, folder],
        total,
        _clear(total, random, limit),
        round=seeds,
        on_progress=working(f"comparing with {name}"),
    )
    returns = [result["returns"] for result in results] or [[], []]
    verdict = compare_pairs(returns[0], returns[1], name, total, random)
    if not verdict.decided:
        more = f"{bin_folder()}shepherd resume {short_path(run.path)} model_manager.gate_time=null"
        took = f"the {duration(limit or 0.0)} that training took, times model_manager.gate_time, were over"
        verdict = verdict._replace(words=f"{verdict.words}; {took}; `{more}` plays all of them")
    return (results[0] if results else {}), verdict


def play_alone(run: RunDirectory, policy: Path, seeds: int, on_progress: OnProgress) -> dict[str, Any]:
    """Play a policy alone and tell how many episodes have ended."""
    return final.evaluate_checkpoint(run, policy, most_episodes(run), round=seeds, on_progress=on_progress)


def most_episodes(run: RunDirectory) -> int:
    """Episodes of a whole comparison."""
    return max(EPISODES, config_of(run).evaluation.final_episodes)


def _clear(total: int, random: float | None, limit: float | None) -> Callable[[list[list[float]]], bool]:
    """Whether to end: the verdict is foreseen, or the time is over."""
    began, looks = time.monotonic(), 0

    def clear(returns: list[list[float]]) -> bool:
        nonlocal looks
        if limit is not None and time.monotonic() - began > limit:
            return True
        if len(returns[0]) // LOOK_EVERY == looks:
            return False
        looks = len(returns[0]) // LOOK_EVERY
        return foresee(returns[0], returns[1], total, random) is not None

    return clear


def _random(run: RunDirectory) -> float | None:
    """The random policy's mean return."""
    baseline = last_event(read_events(run.events), "baseline")
    return baseline["mean"] if baseline else None


def _limit(run: RunDirectory) -> float | None:
    """Seconds that it may take: a multiple of what training took; None where that is not wanted, or not known."""
    times, clock = config_of(run).model_manager.gate_time, lines(read_events(run.events)).get(WALL)
    took = clock[-1][1] if clock else run.read_summary().get("wall_s")  # the log has no clock: metric.disable_timer
    return times * took if times is not None and took is not None else None
