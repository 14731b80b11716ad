"""A new version beside the champion: the same fresh episodes, in turns, until it is clear who is better."""

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

# Calls a function, "module.name", where torch is: of a run and JSON, `doing` tells what (`flows.runs.with_torch`).
WithTorch = Callable[..., Any]


def against_champion(
    client: MlflowClient,
    run: RunDirectory,
    checkpoint: Path,
    version: ModelVersion,
    champion: ModelVersion,
    with_torch: WithTorch,
) -> tuple[dict[str, Any], GateVerdict | str]:
    """Play a version beside the champion, on seeds that neither was trained, selected or judged on.

    Args:
        client: of the registry.
        run: the version's.
        checkpoint: the version's.
        version: the new one.
        champion: the one that is there.
        with_torch: calls what plays.

    Returns:
        The version's figures, empty where the time was over before an episode; the verdict, or what is missing for one.
    """
    pair, number = int(champion.version) + int(version.version), int(version.version)
    seeds = 2 + pair * (pair + 1) // 2 + number  # of this pair alone (Cantor), above those of training and its end
    folder = registry.fetch_policy(client, champion)
    name, total = f"champion version {champion.version}", most_episodes(run)
    random, limit = _random(run), _limit(run)
    asked = (str(checkpoint), str(folder), total, random, limit, seeds)
    results = with_torch(run, "flows.registry.playing.play_beside", *asked, doing=f"comparing with {name}")
    if results is None:
        alone = play_alone(run, checkpoint, with_torch, "evaluating the new version", seeds)
        return alone, "a champion of other spaces"
    returns = [result["returns"] for result in results] or [[], []]
    verdict = compare_pairs(returns[0], returns[1], name, total, random)
    return (results[0] if results else {}), verdict if verdict.decided else _tell_why(verdict, run, limit)


def against_random(run: RunDirectory, result: Mapping[str, Any], baseline: Mapping[str, Any]) -> GateVerdict:
    """Compare a version's figures, of as many episodes as there was time for, with the random policy's."""
    count = result.get("episodes", 0)
    if count >= FEWEST_SEEN:
        return against_baseline(result, baseline)
    words = f"not decided against the random baseline: {count} of {most_episodes(run)} episodes were played"
    return _tell_why(GateVerdict(False, 0.0, -math.inf, math.inf, words, decided=False), run, _limit(run))


def _tell_why(verdict: GateVerdict, run: RunDirectory, limit: float | None) -> GateVerdict:
    """A verdict for which the time was too short, with what it was and how to have more."""
    more = f"{bin_folder()}shepherd resume {short_path(run.path)} model_manager.gate_time=null"
    times = spell(config_of(run).model_manager.gate_time)
    ended = f"model_manager.gate_time={times}, times what training took, ended it after {duration(limit or 0.0)}"
    return verdict._replace(words=f"{verdict.words}; {ended}; `{more}` plays all of them")


def play_alone(
    run: RunDirectory, policy: Path, with_torch: WithTorch, doing: str, seeds: int | None = None
) -> dict[str, Any]:
    """Play a policy alone, no longer than `model_manager.gate_time` allows; its figures, {} where no episode ended.

    `seeds` is the round of environment seeds; None: that of a last evaluation.
    """
    asked = (str(policy), most_episodes(run), _limit(run), seeds)
    results = with_torch(run, "flows.registry.playing.play_within", *asked, doing=doing)
    return results[0] if results else {}


def most_episodes(run: RunDirectory) -> int:
    """Episodes of a whole comparison."""
    return max(EPISODES, config_of(run).evaluation.final_episodes)


def _random(run: RunDirectory) -> float | None:
    """The random policy's mean return."""
    baseline = history(run.events).last("baseline")
    return baseline["mean"] if baseline else None


def _limit(run: RunDirectory) -> float | None:
    """Seconds that it may take: a multiple of what training took; None where that is not wanted, or not known."""
    times, clock = config_of(run).model_manager.gate_time, history(run.events).lines.get(WALL)
    took = clock[-1][1] if clock else run.read_summary().get("wall_s")  # the log has no clock: metric.disable_timer
    return times * took if times is not None and took is not None else None
