"""Parts of registering a policy that need torch: export, and episodes beside the champion. Small JSON in and out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlcore.judge import final
from rlcore.judge.loaded_policy import LoadedPolicy
from rlcore.judge.play import OnProgress
from rlcore.judge.policy import export_part, export_policy, load_policy
from rlcore.store.directory import RunDirectory

LOOK_EVERY = 10  # episodes of both


def export(run: RunDirectory, checkpoint: str, folder: str) -> dict[str, Any]:
    """Write a checkpoint's policy into a folder; what `flows.registry.upload.Exported` has beside that."""
    policy = load_policy(export_policy(run, Path(checkpoint), Path(folder)))
    return {
        "description": policy.description,
        "signature": asdict(policy.signature),
        "example": {name: array.tolist() for name, array in example_of(policy).items()},
    }


def export_parts(run: RunDirectory, checkpoint: str, parts: list[str], folder: str) -> None:
    """Write parts of a checkpoint's learner into a folder, each one in a folder of its name."""
    for part in parts:
        export_part(run, Path(checkpoint), part, Path(folder) / part)


def example_of(policy: LoadedPolicy) -> dict[str, np.ndarray]:
    """A batch of one observation at an episode's start, by the names of the policy's signature."""
    arrays = policy.example()
    if carry := policy.initial_carry(1):
        arrays |= {"is_first": np.ones(1, bool)} | carry
    return arrays


def play_beside(
    run: RunDirectory,
    ours: str,
    theirs: str,
    total: int,
    random: float | None,
    limit: float | None,
    seeds: int,
    on_progress: OnProgress,
) -> list[dict[str, Any]] | None:
    """Play the same episodes with two policies in turns, until the verdict is foreseen or the time is over.

    Args:
        run: whose environment.
        ours: the new policy, a checkpoint or an exported folder.
        theirs: the champion.
        total: episodes of each at most.
        random: the random policy's mean return.
        limit: seconds; None = no limit.
        seeds: the round of environment seeds.
        on_progress: as for `side_by_side`.

    Returns:
        Of each policy what `side_by_side` gives; None where the champion is of other spaces.
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
    """Play episodes with a policy until there are so many or the time is over.

    Args:
        run: whose environment.
        policy: a checkpoint or an exported folder.
        total: episodes at most.
        limit: seconds; None = no limit.
        seeds: the round of environment seeds; None: that of a last evaluation.
        on_progress: as for `side_by_side`.

    Returns:
        As `side_by_side`, of one policy.
    """
    over, round = _over(limit), final.FINAL_ROUND if seeds is None else seeds
    return final.side_by_side(run, [Path(policy)], total, lambda _: over(), round=round, on_progress=on_progress)


def _over(limit: float | None) -> Callable[[], bool]:
    """Clock that tells whether so many seconds have passed from now on; never, where there is no limit."""
    began = time.monotonic()
    return lambda: limit is not None and time.monotonic() - began > limit


def _clear(total: int, random: float | None, limit: float | None) -> Callable[[list[list[float]]], bool]:
    """Rule that tells whether to end: the verdict is foreseen, or the time is over."""
    from flows.registry.gate import foresee  # scipy

    over, looks = _over(limit), 0

    def clear(returns: list[list[float]]) -> bool:
        nonlocal looks
        if over():
            return True
        if len(returns[0]) // LOOK_EVERY == looks:
            return False
        looks = len(returns[0]) // LOOK_EVERY
        return foresee(returns[0], returns[1], total, random) is not None

    return clear
