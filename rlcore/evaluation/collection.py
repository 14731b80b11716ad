"""Recording of complete episodes of a policy, and export of the episodes as a Minari dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlcore import __version__
from rlcore.data.staging import columns
from rlcore.envs.make import adapt_to_evaluation
from rlcore.envs.vector.limited import limited_env
from rlcore.evaluation.evaluation import play_round, warn_of_cut
from rlcore.evaluation.play import EpisodeRecorder, OnProgress
from rlcore.evaluation.policy import load_policy
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.spec import EnvSpec
from rlcore.store import minari_datasets
from rlcore.store.checkpoint import manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.minari_datasets import PlayedEpisode
from rlcore.streams import integer
from rlcore.types import TimeStep
from rlcore.user_code import user_code

PURPOSE = "dataset"  # random stream of the environment seeds


class PlayedRows:
    """Recorder of the time steps of B environments and the actions that a policy takes.

    Args:
        limit: recording stops when the recorded arrays exceed this number of bytes. None: no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}
        self.bytes, self._limit = 0, limit

    def __call__(self, time_step: TimeStep, action: np.ndarray) -> None:
        """Record a time step and the action, in the environment's format, that was chosen after it."""
        if self._limit is not None and self.bytes > self._limit:
            return
        for key, value in (columns(time_step) | {"action": action}).items():
            self.rows.setdefault(key, []).append(np.array(value))
            self.bytes += value.nbytes

    def columns(self) -> dict[str, np.ndarray]:
        """Return the recorded data: observations `obs/<key>`, reward, flags and actions, name -> [T, B, ...].

        `reward[t]` was returned together with `obs/<key>[t]`; `action[t]`, in the environment's format, was chosen
        after it.
        """
        return {key: np.stack(rows) for key, rows in self.rows.items()}


@user_code()
def collect_episodes(
    run: RunDirectory,
    path: Path,
    name: str,
    episodes: int,
    *,
    actions: str = "sampled",
    round: int = 0,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Run complete episodes with a policy and write them as a Minari dataset.

    Args:
        run: run directory; its config defines environment and seed.
        path: checkpoint with the policy.
        name: name of the new dataset, in Minari's format.
        episodes: number of episodes.
        actions: "sampled" or "greedy" actions of the policy, or "random" (uniform, without the policy).
        round: different values result in different environment seeds. Neither training nor evaluations use any of
            these seeds.
        on_progress: called after every step with the number of finished episodes and `episodes`.

    Returns:
        A dict: `folder` of the dataset, `episodes` (number of episodes), `rows` (number of actions in all episodes),
        and `mean` (mean return).
    """
    minari_datasets.check_name(name)
    config, card = config_of(run), run.read_card()
    agent = RandomAgent(EnvSpec.from_json(card["spec"])) if actions == "random" else load_policy(path).agent
    recorded, played = PlayedRows(), EpisodeRecorder(episodes)
    greedy = actions == "greedy"
    for played in play_round(
        agent, config, card, episodes, greedy=greedy, round=round, purpose=PURPOSE, on_step=recorded
    ):
        if on_progress is not None:
            on_progress(len(played.done), episodes)
    assert played.arrival is not None
    recorded(played.arrival, recorded.rows["action"][-1])  # the last time step has no action; this one is ignored
    result = played.result()
    warn_of_cut(result, config, card)
    found = whole_episodes(recorded.columns(), episodes, lambda index: integer(config.seed, PURPOSE, round, index))
    about = _about(run, path, actions) | {"round": round, "seed": config.seed}
    with limited_env(adapt_to_evaluation(config.env, config.evaluation.env_config)) as limited:
        folder = minari_datasets.write(name, found, limited.env, _for_minari(about, episodes))
    return {
        "folder": folder,
        "episodes": episodes,
        "rows": sum(result.lengths),
        "mean": result.to_json()["mean"],
    }


def whole_episodes(rows: Mapping[str, np.ndarray], count: int, seed: Callable[[int], int]) -> list[PlayedEpisode]:
    """Split the recorded time steps of B environments into episodes.

    Environment k has run the episodes with the numbers k, k + B, k + 2 B and so on.

    Args:
        rows: recorded data from `PlayedRows.columns`, name -> [T, B, ...].
        count: number of episodes.
        seed: function that takes the number of an episode and returns its environment seed.

    Returns:
        Episodes 0 to `count` - 1, in order.
    """
    ended = rows["terminated"] | rows["truncated"]
    width, found = ended.shape[1], {}
    for k in range(width):
        begins, ends = (np.flatnonzero(column[:, k]) for column in (rows["is_first"], ended))
        for index, begin, end in zip(range(k, count, width), begins, ends, strict=False):
            taken, arrived = slice(begin, end), slice(begin + 1, end + 1)
            found[index] = PlayedEpisode(
                seed(index),
                {name[4:]: column[begin : end + 1, k] for name, column in rows.items() if name.startswith("obs/")},
                rows["action"][taken, k],
                *(rows[name][arrived, k] for name in ("reward", "terminated", "truncated")),
            )
    return [found[index] for index in range(count)]


def _about(run: RunDirectory, path: Path, actions: str) -> dict[str, Any]:
    """Return the metadata of a dataset that describe how it was created: policy, environment, version of the code."""
    config, identity, card = run.read_config(), run.read_identity(), run.read_card()
    source = manifest(path)
    who = {"checkpoint": source["policy_steps"], "digest": source["digest"]} if actions != "random" else {}
    return {
        "version": __version__,
        "run": run.name,
        "run_id": identity.get("run_id"),
        "commit": identity.get("commit"),
        "algo": config["algo"]["name"],
        "actions": actions,
        **who,
        "env": card["settings"],
        "packages": card["packages"],
    }


def _for_minari(about: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Return a dataset's metadata in Minari's format: the keys that Minari displays, and `about` in key `shepherd`."""
    whose = (
        "uniformly random actions" if about["actions"] == "random" else f"{about['actions']} actions of {about['algo']}"
    )
    at = f", checkpoint {about['checkpoint']} ({about['digest'][:16]})" if "checkpoint" in about else ""
    return {
        "algorithm_name": about["algo"] if "checkpoint" in about else "random",
        "author": f"Shepherd {about['version']}",
        "description": f"{episodes} episodes of {about['env']['id']}: {whose}; run {about['run']}{at}",
        "requirements": [f"{name}=={version}" for name, version in about["packages"].items()],
        "shepherd": about,
    }
