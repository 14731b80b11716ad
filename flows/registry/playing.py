"""Steps of model registration that need torch: export of a policy, and episodes that compare two policies.

They run in a separate process, so their arguments and results are JSON values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlcore.evaluation import final
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import export_part, export_policy, load_policy
from rlcore.store.directory import RunDirectory

LOOK_EVERY = 10  # episodes of both policies between two predictions of the verdict


def export(run: RunDirectory, checkpoint: str, folder: str) -> dict[str, Any]:
    """Write the policy of a checkpoint to a folder.

    Returns the fields of `flows.registry.upload.Exported` except `folder`, as JSON values.
    """
    policy = load_policy(export_policy(run, Path(checkpoint), Path(folder)))
    return {
        "description": policy.description,
        "signature": asdict(policy.signature),
        "example": {name: array.tolist() for name, array in example_of(policy).items()},
    }


def export_parts(run: RunDirectory, checkpoint: str, parts: list[str], folder: str) -> None:
    """Write parts of a checkpoint's learner to subfolders of a folder, named after the parts."""
    for part in parts:
        export_part(run, Path(checkpoint), part, Path(folder) / part)


def example_of(policy: LoadedPolicy) -> dict[str, np.ndarray]:
    """Return an example input of a policy: name of an input in the policy's signature -> array with batch size 1.

    The observation is the first one of an episode.
    """
    arrays = policy.example()
    if carry := policy.initial_carry(1):
        arrays |= {"is_first": np.ones(1, bool)} | carry
    return arrays


def play_in_process(
    run: RunDirectory,
    ours: str,
    theirs: str,
    total: int,
    random: float | None,
    limit: float | None,
    seeds: int,
    on_progress: OnProgress,
) -> list[dict[str, Any]] | None:
    """Play the same episodes with two policies, until the verdict can be predicted or the time limit is reached.

    Args:
        run: the run that defines the environment.
        ours: the new policy, a checkpoint or an exported folder.
        theirs: the champion.
        total: maximal number of episodes of each policy.
        random: mean return of the random policy, if known.
        limit: time limit in seconds; None for no limit.
        seeds: number of the set of environment seeds; different numbers give different seeds.
        on_progress: see `side_by_side`.

    Returns:
        The result of `side_by_side`; None if the champion has other observation or action spaces.
    """
    new, old = load_policy(ours), load_policy(theirs)
    same_obs = {k: new.spec.obs.get(k) for k in old.obs_keys} == {k: old.spec.obs[k] for k in old.obs_keys}
    if not same_obs or new.spec.action != old.spec.action:
        return None
    enough = _clear(total, random, limit)
    return final.side_by_side(run, [Path(ours), Path(theirs)], total, enough, round=seeds, on_progress=on_progress)


def play_within(
    run: RunDirectory, policy: str, total: int, limit: float | None, seeds: int | None, on_progress: OnProgress
) -> list[dict[str, Any]]:
    """Play `total` episodes with a policy, fewer if the time limit is reached.

    Args:
        run: the run that defines the environment.
        policy: a checkpoint or an exported folder.
        total: maximal number of episodes.
        limit: time limit in seconds; None for no limit.
        seeds: number of the set of environment seeds; None for the set that final evaluations use.
        on_progress: see `side_by_side`.

    Returns:
        The result of `side_by_side` with one policy.
    """
    over, round = _over(limit), final.FINAL_ROUND if seeds is None else seeds
    return final.side_by_side(run, [Path(policy)], total, lambda _: over(), round=round, on_progress=on_progress)


def _over(limit: float | None) -> Callable[[], bool]:
    """Return a function that returns True after `limit` seconds from now; always False without a limit."""
    began = time.monotonic()
    return lambda: limit is not None and time.monotonic() - began > limit


def _clear(total: int, random: float | None, limit: float | None) -> Callable[[list[list[float]]], bool]:
    """Return a function that decides if a comparison of two policies can stop.

    The argument of the function is a list with the returns so far of each policy. It returns True if the verdict can be
    predicted or the time limit is reached.
    """
    from flows.registry.gate import is_decided  # scipy

    over, looks = _over(limit), 0

    def clear(returns: list[list[float]]) -> bool:
        nonlocal looks
        if over():
            return True
        if len(returns[0]) // LOOK_EVERY == looks:
            return False
        looks = len(returns[0]) // LOOK_EVERY
        return is_decided(returns[0], returns[1], total, random) is not None

    return clear
