"""Stage verify: compare a reproduction with the original run.

Each checkpoint is compared when it is saved. At the end, all results are compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.report.command_lines import short_path
from flows.runs.lineage import whole_lineage
from flows.runs.listeners import emit
from flows.runs.milestones import note_died
from flows.runs.original import VERDICT, Original, ReproductionMismatch, differences_here
from rlcore.errors import RunError
from rlcore.store import checkpoint, compare
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.history import history
from rlcore.train.boundary import Boundary


def describe_difference(run: RunDirectory) -> None:
    """Report how code, versions and machine differ from those of the original, before a reproduction is trained."""
    original = Original.of(run)
    differences = list(differences_here(run))
    about = f"reproducing {original.source} to {original.until:,} policy steps in {short_path(run.path)}"
    known = "differences from the original:" if differences else "no known differences from the original"
    emit("stage", {"doing": f"{about}; {known}"})
    for sentence in differences:
        emit("stage", {"doing": f"  {sentence}"})


def has_reached_original(run: RunDirectory, at: Boundary) -> bool:
    """Return True if a reproduction has reached the last checkpoint of the original.

    In that case, write the end event of the reproduction.
    """
    if at.done or at.policy_steps < Original.of(run).until:
        return False
    note_died(run, "interrupted", "the original has no later checkpoint")
    return True


def verify(run: RunDirectory, policy_steps: int) -> dict[str, Any] | None:
    """Compare the checkpoint at `policy_steps` with the original's checkpoint.

    Returns {policy_steps, digest, original: digest of the original's checkpoint, same: True if they are identical,
    sentence}. Returns None if the reproduction or the original has no checkpoint at `policy_steps`. This happens if a
    signal caused a checkpoint at a step at which the config requests none, or if the trainer process has died and has
    not reached `policy_steps` again.
    """
    original = Original.of(run)
    stored = original.lineage["checkpoints"]
    now = history(run.events).last("checkpoint", policy_steps=policy_steps)
    then = stored.get(str(policy_steps))
    if now is None or then is None:
        return None
    result = {"policy_steps": policy_steps, "digest": now["digest"], "original": then["digest"]}
    if now["digest"] == then["digest"]:
        return result | {"same": True, "sentence": f"identical at {policy_steps:,} policy steps"}
    first = _first_difference(original, then, now["tensors"], run.checkpoints / str(policy_steps))
    same = [int(other) for other in stored if int(other) < policy_steps]
    since = f"; identical at {max(same):,}" if same else ""
    sentence = f"different at {policy_steps:,} policy steps: first in {first}{since}"
    result |= {"same": False, "first": first, "sentence": sentence}
    write_json(run.path / VERDICT, {"identical": False, "of": original.lineage["run_id"], "segments": [result]})
    return result


def _first_difference(original: Original, event: dict[str, Any], now: str, ours: Path) -> str:
    """Return a phrase that names the first entry of the learning state that differs between two checkpoints.

    If the original's checkpoint still exists, the phrase also contains both values.
    """
    theirs = original.run_dir and checkpoint.find(Path(original.run_dir, "checkpoints"), int(ours.name))
    if theirs and not checkpoint.damage(theirs):
        return str(next(compare.differences(theirs, ours), "the order of the entries in state.json"))
    then, names = event["tensors"], compare.tensor_names(checkpoint.load(ours)[0])
    if len(then) != len(now):
        return "the number of tensors"
    for at, name in enumerate(names):
        if then[8 * at : 8 * at + 8] != now[8 * at : 8 * at + 8]:
            return name
    return "a value outside the tensors (state.json)"


def verdict(run: RunDirectory) -> dict[str, Any]:
    """Compare all results of a reproduction with the original, write reproduction.json, return the result.

    The checkpoints are compared again, because a reproduction that was killed after a checkpoint and before its
    comparison does not repeat it. Raises `ReproductionMismatch` if a checkpoint, an evaluation or the dataset differs.
    """
    original, lineage = Original.of(run), whole_lineage(run, {})
    common = [steps for steps in original.lineage["checkpoints"] if steps in lineage["checkpoints"]]
    if not common:
        raise RunError(f"{run.path}: no checkpoint at the same policy steps as {original.source}; nothing was compared")
    for steps in common:
        compared = verify(run, int(steps))
        if compared is not None and not compared["same"]:
            raise ReproductionMismatch(compared["sentence"])
    last = max(common, key=int)
    differing = [key for key in ("evaluations", "dataset_digest") if not _agrees(key, original.lineage, lineage)]
    tensors = len(lineage["checkpoints"][last]["tensors"]) // 8
    result = {
        "identical": not differing,
        "of": original.lineage["run_id"],
        "tensors": tensors,
        "segments": [{"policy_steps": int(steps), **lineage["checkpoints"][steps], "same": True} for steps in common],
        "differing": differing,
    }
    write_json(run.path / VERDICT, result)
    where = f"{tensors} tensors at {len(common)} checkpoints, the last at {int(last):,} policy steps"
    if differing:
        raise ReproductionMismatch(
            f"identical {where}, but different {' and '.join(differing)}: the environment may use random numbers "
            "that do not depend on its seed"
        )
    return {"run_dir": str(run.path), "identical": True, "tensors": tensors, "result": f"identical, {where}"}


def _agrees(key: str, then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return True if original and reproduction have the same evaluations (or dataset, depending on `key`).

    Evaluations that only one of the two runs has are ignored. If only one run has a dataset, the datasets count as the
    same.
    """
    if key == "evaluations":
        return all(then[key][at] == now[key][at] for at in then[key].keys() & now[key].keys())
    return "none" in (then[key], now[key]) or then[key] == now[key]
