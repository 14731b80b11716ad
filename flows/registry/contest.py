"""Comparison of a new version of a model with the champion, the best version so far.

Both play the same episodes, whose seeds no training and no evaluation has used, until the verdict is certain.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.registry import models as registry
from flows.registry.gate import EPISODES, FEWEST_SEEN, GateVerdict, against_baseline, compare_pairs
from flows.report.command_lines import bin_folder, short_path, stage_command
from flows.report.sentences import duration
from rlcore import plugins
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
    """Compare a new version of a model with the champion, on seeds that no training and no evaluation has used.

    Args:
        client: client of the registry.
        run: run of the new version.
        checkpoint: checkpoint of the new version.
        version: the new version.
        champion: the present champion.
        with_torch: function that calls another function by name in a process with torch, such as
            `flows.runs.with_torch.with_torch`.

    Returns:
        Two values. The first is the evaluation of the new version, or {} if the time limit was reached before an
        episode ended. The second is the verdict; if the policies cannot play the same environment, it is a text with
        the reason. If the champion cannot be loaded, for example because it needs a plugin that the user has not named,
        the verdict is undecided, so that the stage register-model can compare later.
    """
    pair, number = int(champion.version) + int(version.version), int(version.version)
    seeds = 2 + pair * (pair + 1) // 2 + number  # unique for the pair (Cantor); 0 and 1 are used by the run itself
    folder = registry.fetch_policy(client, champion)
    name, total = f"champion version {champion.version}", most_episodes(run)
    random, limit = _random(run), _limit(run)
    arguments = (str(checkpoint), str(folder), total, random, limit, seeds)
    results = with_torch(run, "flows.registry.playing.play_in_process", *arguments, doing=f"comparing with {name}")
    if isinstance(results, dict):  # the champion cannot be loaded
        alone = play_candidate(run, checkpoint, with_torch, "evaluating the new version", seeds)
        return alone, _not_compared(run, name, results)
    if results is None:
        alone = play_candidate(run, checkpoint, with_torch, "evaluating the new version", seeds)
        return alone, "the champion has other observation or action spaces"
    returns = [result["returns"] for result in results] or [[], []]
    verdict = compare_pairs(returns[0], returns[1], name, total, random)
    return (results[0] if results else {}), verdict if verdict.decided else _explain(verdict, run, limit)


def against_random(run: RunDirectory, result: Mapping[str, Any], baseline: Mapping[str, Any]) -> GateVerdict:
    """Compare a new model with the random policy.

    Args:
        run: run of the new model.
        result: evaluation of the new model; {} if no episode was finished.
        baseline: evaluation of the random policy.

    Returns:
        The verdict. It is undecided if `result` has fewer than `FEWEST_SEEN` episodes, because of the time limit.
    """
    count = result.get("episodes", 0)
    if count >= FEWEST_SEEN:
        return against_baseline(result, baseline)
    words = f"undecided against the random baseline: {count} of {most_episodes(run)} episodes were played"
    return _explain(GateVerdict(False, 0.0, -math.inf, math.inf, words, decided=False), run, _limit(run))


def _explain(verdict: GateVerdict, run: RunDirectory, limit: float | None) -> GateVerdict:
    """Add two facts to the sentence of an undecided verdict: the time limit that ended the comparison, and a command.

    The command resumes the run without a time limit, so that all episodes are played.
    """
    words = ["resume", short_path(run.path), "model_manager.gate_time=null", *plugins.as_typed()]
    more = f"{bin_folder()}shepherd {shlex.join(words)}"
    times = spell(config_of(run).model_manager.gate_time)
    ended = f"the time limit of {duration(limit or 0.0)} (model_manager.gate_time={times} × training time) was reached"
    return verdict._replace(words=f"{verdict.words}; {ended}; `{more}` plays all episodes")


def _not_compared(run: RunDirectory, name: str, reason: Mapping[str, Any]) -> GateVerdict:
    """Return an undecided verdict, because the champion cannot be loaded; `reason` is that of `play_in_process`.

    The sentence contains the command that makes the comparison.
    """
    modules = [*plugins.list_named(), *reason.get("plugins", ())]
    again = f"{bin_folder()}{stage_command('register-model', short_path(run.path), None, [], modules)}"
    if "plugins" in reason:
        typed = f"plugins=[{','.join(reason['plugins'])}]"
        words = f"the champion needs {typed}, which this command does not name; `{again}` compares the two policies"
    else:
        words = (
            f"the champion cannot be loaded ({reason['error']}); if it can be loaded again, `{again}` compares the two "
            "policies"
        )
    return GateVerdict(False, 0.0, -math.inf, math.inf, f"not compared with {name}, because {words}", decided=False)


def play_candidate(
    run: RunDirectory, policy: Path, with_torch: WithTorch, doing: str, seeds: int | None = None
) -> dict[str, Any]:
    """Evaluate a policy within the time limit `model_manager.gate_time`.

    Args:
        run: the run that defines the environment and the time limit.
        policy: a checkpoint or a policy folder.
        with_torch: function that calls another function by name in a process with torch.
        doing: text for progress messages.
        seeds: number that selects a set of environment seeds; None for the set that final evaluations use.

    Returns:
        The evaluation, or {} if no episode ended within the time limit.
    """
    arguments = (str(policy), most_episodes(run), _limit(run), seeds)
    results = with_torch(run, "flows.registry.playing.play_within", *arguments, doing=doing)
    return results[0] if results else {}


def most_episodes(run: RunDirectory) -> int:
    """Return the number of episodes that each policy plays in a comparison that no time limit ends."""
    return max(EPISODES, config_of(run).evaluation.final_episodes)


def _random(run: RunDirectory) -> float | None:
    """Return the mean return of the random policy in the log of a run; None if it was not evaluated."""
    baseline = history(run.events).last("baseline")
    return baseline["mean"] if baseline else None


def _limit(run: RunDirectory) -> float | None:
    """Return the time limit of a comparison in seconds, `model_manager.gate_time` × training time.

    Returns None if there is no limit or the training time is unknown.
    """
    times, clock = config_of(run).model_manager.gate_time, history(run.events).lines.get(WALL)
    took = clock[-1][1] if clock else run.read_summary().get("wall_s")  # metric.disable_timer: no times in the log
    return times * took if times is not None and took is not None else None
