"""Comparison of a new version with the champion on the same new episodes, until the verdict is certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import models as registry
from flows.registry.gate import EPISODES, FEWEST_SEEN, GateVerdict, against_baseline, compare_pairs
from flows.report.command_lines import bin_folder, short_path
from flows.report.sentences import duration
from rlcore.config.values import spell
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from rlcore.store.series import WALL

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

# Calls a function "module.name" with a run and JSON values in a process with torch (`flows.runs.with_torch`); `doing`
# describes the call in progress messages.
WithTorch = Callable[..., Any]


def against_champion(
    client: MlflowClient,
    run: RunDirectory,
    checkpoint: Path,
    version: ModelVersion,
    champion: ModelVersion,
    with_torch: WithTorch,
) -> tuple[dict[str, Any], GateVerdict | str]:
    """Compare a version with the champion, on seeds that were not used to train, select or evaluate either of them.

    Args:
        client: client of the registry.
        run: run of the new version.
        checkpoint: checkpoint of the new version.
        version: the new version.
        champion: the present champion.
        with_torch: calls the function that plays the episodes.

    Returns:
        Two values. The first is the evaluation of the new version, or {} if the time limit was reached before an
        episode ended. The second is the verdict, or a text with the reason why there is none.
    """
    pair, number = int(champion.version) + int(version.version), int(version.version)
    seeds = 2 + pair * (pair + 1) // 2 + number  # unique for the pair (Cantor); 0 and 1 are used by the run itself
    folder = registry.fetch_policy(client, champion)
    name, total = f"champion version {champion.version}", most_episodes(run)
    random, limit = _random(run), _limit(run)
    arguments = (str(checkpoint), str(folder), total, random, limit, seeds)
    results = with_torch(run, "flows.registry.playing.play_in_process", *arguments, doing=f"comparing with {name}")
    if results is None:
        alone = play_candidate(run, checkpoint, with_torch, "evaluating the new version", seeds)
        return alone, "the champion has other observation or action spaces"
    returns = [result["returns"] for result in results] or [[], []]
    verdict = compare_pairs(returns[0], returns[1], name, total, random)
    return (results[0] if results else {}), verdict if verdict.decided else _tell_why(verdict, run, limit)


def against_random(run: RunDirectory, result: Mapping[str, Any], baseline: Mapping[str, Any]) -> GateVerdict:
    """Compare the evaluation of a version with that of the random policy.

    The verdict is "undecided" if the time limit was reached before enough episodes were played.
    """
    count = result.get("episodes", 0)
    if count >= FEWEST_SEEN:
        return against_baseline(result, baseline)
    words = f"undecided against the random baseline: {count} of {most_episodes(run)} episodes were played"
    return _tell_why(GateVerdict(False, 0.0, -math.inf, math.inf, words, decided=False), run, _limit(run))


def _tell_why(verdict: GateVerdict, run: RunDirectory, limit: float | None) -> GateVerdict:
    """Add two facts to the sentence of an undecided verdict.

    They are the time limit that ended the comparison, and the command that plays all episodes.
    """
    more = f"{bin_folder()}shepherd resume {short_path(run.path)} model_manager.gate_time=null"
    times = spell(config_of(run).model_manager.gate_time)
    ended = f"the time limit of {duration(limit or 0.0)} (model_manager.gate_time={times} × training time) was reached"
    return verdict._replace(words=f"{verdict.words}; {ended}; `{more}` plays all episodes")


def play_candidate(
    run: RunDirectory, policy: Path, with_torch: WithTorch, doing: str, seeds: int | None = None
) -> dict[str, Any]:
    """Evaluate a policy for at most the time that `model_manager.gate_time` allows; return {} if no episode ended.

    `seeds` is the number of a set of environment seeds; different numbers give different seeds. None selects the set
    that final evaluations use.
    """
    arguments = (str(policy), most_episodes(run), _limit(run), seeds)
    results = with_torch(run, "flows.registry.playing.play_within", *arguments, doing=doing)
    return results[0] if results else {}


def most_episodes(run: RunDirectory) -> int:
    """Return the number of episodes that each policy plays in a complete comparison with the champion."""
    return max(EPISODES, config_of(run).evaluation.final_episodes)


def _random(run: RunDirectory) -> float | None:
    """Return the random policy's mean return, or None."""
    baseline = history(run.events).last("baseline")
    return baseline["mean"] if baseline else None


def _limit(run: RunDirectory) -> float | None:
    """Return the time limit of a comparison in seconds, `model_manager.gate_time` × training time.

    Returns None if there is no limit or the training time is unknown.
    """
    times, clock = config_of(run).model_manager.gate_time, history(run.events).lines.get(WALL)
    took = clock[-1][1] if clock else run.read_summary().get("wall_s")  # metric.disable_timer: no times in the log
    return times * took if times is not None and took is not None else None
