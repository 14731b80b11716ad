"""Episodes of a policy: rows as they come, whole episodes cut out of them, and these as a dataset of Minari's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlcore import __version__
from rlcore.data.arrivals import columns
from rlcore.envs.make import adapt_to_evaluation
from rlcore.envs.vector.limited import limited_env
from rlcore.judge.evaluation import play_round, tell_of_cut
from rlcore.judge.play import OnProgress, Played
from rlcore.judge.policy import load_policy
from rlcore.judge.random_agent import RandomAgent
from rlcore.spec import EnvSpec
from rlcore.store import minari_datasets
from rlcore.store.checkpoint import manifest
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.minari_datasets import PlayedEpisode
from rlcore.streams import integer
from rlcore.types import Arrival
from rlcore.user_code import user_code

PURPOSE = "dataset"  # stream of the environments' seeds


class PlayedRows:
    """Rows of [B] arrivals and the actions that answered them, up to so many bytes.

    Args:
        limit: in bytes; None = all of them.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}
        self.bytes, self._limit = 0, limit

    def __call__(self, arrival: Arrival, action: np.ndarray) -> None:
        """Take one moment of play."""
        if self._limit is not None and self.bytes > self._limit:
            return
        for key, value in (columns(arrival) | {"action": action}).items():
            self.rows.setdefault(key, []).append(np.array(value))
            self.bytes += value.nbytes

    def columns(self) -> dict[str, np.ndarray]:
        """key -> [T, B, ...], in the alignment of rlcore/types.py; `action` in the environment's form."""
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
    """Play whole episodes with a policy and write them as a dataset of Minari's.

    Args:
        run: whose environment and seed.
        path: the checkpoint that the policy lies in.
        name: of the new dataset, in Minari's form.
        episodes: how many.
        actions: "sampled", "greedy" or "random" (uniformly, without the policy).
        round: set of environment seeds; no training and no evaluation has any of them.
        on_progress: called after every step with the number of episodes that have ended, and `episodes`.

    Returns:
        `folder`, `episodes`, `rows` (actions taken), `mean` (return).
    """
    minari_datasets.check_name(name)
    config, card = config_of(run), run.read_card()
    agent = RandomAgent(EnvSpec.from_json(card["spec"])) if actions == "random" else load_policy(path).agent
    recorded, played = PlayedRows(), Played(episodes)
    greedy = actions == "greedy"
    for played in play_round(
        agent, config, card, episodes, greedy=greedy, round=round, purpose=PURPOSE, on_step=recorded
    ):
        if on_progress is not None:
            on_progress(len(played.done), episodes)
    assert played.arrival is not None
    recorded(played.arrival, recorded.rows["action"][-1])  # what nobody has answered is the last observation
    result = played.result()
    tell_of_cut(result, config, card)
    found = whole_episodes(recorded.columns(), episodes, lambda index: integer(config.seed, PURPOSE, round, index))
    about = _about(run, path, actions) | {"round": round, "seed": config.seed}
    with limited_env(adapt_to_evaluation(config.env)) as limited:
        folder = minari_datasets.write(name, found, limited.env, _for_minari(about, episodes))
    return {
        "folder": folder,
        "episodes": episodes,
        "rows": sum(result.lengths),
        "mean": result.to_json()["mean"],
    }


def whole_episodes(rows: Mapping[str, np.ndarray], count: int, seed: Callable[[int], int]) -> list[PlayedEpisode]:
    """Episodes 0 to `count` - 1 of a play, of which environment k of B played k, k+B, k+2B, ...

    Args:
        rows: of a `PlayedRows`, [T, B, ...].
        count: how many of them.
        seed: episode -> what its environment was reset with.

    Returns:
        The episodes, in order.
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
    """Origin of a dataset: whose policy played, in which environment, by which code."""
    config, identity, card = run.read_config(), run.read_identity(), run.read_card()
    made = manifest(path)
    who = {"checkpoint": made["policy_steps"], "digest": made["digest"]} if actions != "random" else {}
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
    """The keys that Minari shows of a dataset, and all of its origin beside them."""
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
