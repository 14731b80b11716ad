"""Steps of model registration that need torch: writing of a policy folder, and episodes that compare two policies.

They run in a separate process, so their arguments and results are JSON values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rlcore import plugins
from rlcore.errors import UserError
from rlcore.evaluation import final
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import export_part, load_policy, policy_of, read_source, write_policy_folder
from rlcore.store.directory import RunDirectory

LOOK_EVERY = 10  # episodes of both policies between two predictions of the verdict


def write_policy(run: RunDirectory, checkpoint: str, folder: str) -> dict[str, Any]:
    """Write the policy of a checkpoint to a policy folder.

    Returns JSON values: the content of policy.json ("description"), the inputs and outputs of the policy ("signature")
    and an example of its inputs ("example").
    """
    policy = load_policy(write_policy_folder(run, Path(checkpoint), Path(folder)))
    return {
        "description": policy.description,
        "signature": asdict(policy.signature),
        "example": {name: array.tolist() for name, array in example_of(policy).items()},
    }


def export_parts(run: RunDirectory, checkpoint: str, parts: list[str], folder: str) -> None:
    """Export components of a checkpoint, such as a critic, each to the subfolder `<folder>/<component>`."""
    for part in parts:
        export_part(run, Path(checkpoint), part, Path(folder) / part)


def example_of(policy: LoadedPolicy) -> dict[str, np.ndarray]:
    """Return an example of a policy's inputs: name of each input in the policy's signature -> array with batch size 1.

    The example is the first time step of an episode. For a recurrent policy it contains the initial recurrent state.
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
) -> list[dict[str, Any]] | dict[str, Any] | None:
    """Play the same episodes with two policies, until the verdict can be predicted or the time limit is reached.

    Args:
        run: the run that defines the environment.
        ours: path of the new policy, which is a checkpoint or a policy folder.
        theirs: path of the champion's policy, which is a checkpoint or a policy folder.
        total: maximal number of episodes of each policy.
        random: mean return of the random policy, if known.
        limit: time limit in seconds; None for no limit.
        seeds: number that selects the set of environment seeds; different numbers give different seeds.
        on_progress: called with the number of finished episodes and the maximal number, both summed over the policies.

    Returns:
        The evaluations of the new policy and of the champion; an empty list if there is no episode that both have
        finished. None if the champion has other observation or action spaces. If the champion cannot be loaded in this
        process, a dict with the reason: `plugins`, the plugins that it needs and that the user has not named, or
        `error`, a message.
    """
    new = load_policy(ours)
    try:
        source = read_source(theirs)
        if absent := plugins.missing(source.description.get("plugins", [])):
            return {"plugins": absent}
        old = policy_of(source)
    except UserError as error:  # for example if the code of a plugin has changed since
        return {"error": str(error)}
    same_obs = {k: new.spec.obs.get(k) for k in old.obs_keys} == {k: old.spec.obs[k] for k in old.obs_keys}
    if not same_obs or new.spec.action != old.spec.action:
        return None
    enough = _clear(total, random, limit)
    return final.side_by_side(run, [Path(ours), Path(theirs)], total, enough, round=seeds, on_progress=on_progress)


def play_within(
    run: RunDirectory, policy: str, total: int, limit: float | None, seeds: int | None, on_progress: OnProgress
) -> list[dict[str, Any]]:
    """Play `total` episodes with a policy, or fewer if the time limit is reached.

    Args:
        run: the run that defines the environment.
        policy: path of the policy, which is a checkpoint or a policy folder.
        total: maximal number of episodes.
        limit: time limit in seconds; None for no limit.
        seeds: number that selects the set of environment seeds; None for the set that final evaluations use.
        on_progress: called with the number of finished episodes and the maximal number.

    Returns:
        A list with the evaluation of the policy; an empty list if no episode was finished.
    """
    over, round = _over(limit), final.FINAL_ROUND if seeds is None else seeds
    return final.side_by_side(run, [Path(policy)], total, lambda _: over(), round=round, on_progress=on_progress)


def _over(limit: float | None) -> Callable[[], bool]:
    """Return a function that returns True if `limit` seconds have passed since this call; False if `limit` is None."""
    began = time.monotonic()
    return lambda: limit is not None and time.monotonic() - began > limit


def _clear(total: int, random: float | None, limit: float | None) -> Callable[[list[list[float]]], bool]:
    """Return a function that decides if a comparison of two policies can stop.

    The function takes the returns so far, one list for each policy. It returns True if the verdict can be predicted
    from them or the time limit is reached.

    Args:
        total: number of episodes of a complete comparison.
        random: mean return of the random policy, if known.
        limit: time limit in seconds; None for no limit.

    Returns:
        The function.
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
