"""Changes that a run may make when it goes on: nothing that would have made it learn something else so far."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.learning_half import learning_half
from rlcore.config.schema import defaults, nested_class, types_of
from rlcore.config.values import at, spell
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.fingerprint import differences

log = logging.getLogger(__name__)
_GONE = object()


def may_extend(config: RunConfig, tier: str) -> bool:
    """Tell whether a run may get another `algo.total_steps` and learn the same: nothing so far depends on its end.

    Annealed coefficients do; and where checkpoints cut open episodes, so does the last one.
    """
    return not config.algo.annealing_keys and tier != "boundary"


def refuse_other_config(run: RunDirectory, before: RunConfig, config: RunConfig) -> None:
    """Refuse a new config with which a run would learn something else than it has begun to.

    Args:
        run: whose.
        before: its config.
        config: the new one.

    Raises:
        UserError: names the key, both values and what to do.
    """
    extensible = may_extend(before, run.read_card()["tier"] if run.card.exists() else "")
    for key, old, new in differences(learning_half(before), learning_half(config)):
        if extensible and key == "algo.total_steps":
            newest = checkpoint.newest_good(run.checkpoints)
            refuse_smaller_budget(config, checkpoint.policy_steps(newest) if newest else 0, str(run.path))
            continue
        annealed = ", ".join(f"algo.{name}" for name in before.algo.annealing_keys) if key == "algo.total_steps" else ""
        why = f" ({annealed}: what it does depends on where the run ends)" if annealed else ""
        raise UserError(
            f"{key}={spell(new)}: this run learns with {key}={spell(old)}, and a resumed run learns what it would have "
            f"learned{why}; start a new run from its weights with init_from={run.path}"
        )


def refuse_smaller_budget(config: RunConfig, done: int, place: str) -> None:
    """Refuse `algo.total_steps` below what was trained already; `place` names the run or checkpoint."""
    if config.algo.budget(config.width) < done:
        raise UserError(
            f"algo.total_steps={config.algo.total_steps}: {place} was trained for {done:,} policy steps already; "
            f"give {done} or more, or evaluate an earlier checkpoint (--checkpoint)"
        )


def refuse_other_learning(
    before: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig, checkpoint: Path
) -> None:
    """Refuse to go on from a checkpoint with what would learn something else.

    Args:
        before: the learning half of the fingerprint that the checkpoint was trained with.
        now: that of the run which is to go on from it.
        config: of that run.
        checkpoint: its directory, for the message.

    Raises:
        UserError: names the key, both values and the way to start anew.
    """
    if before.get("generation") != now["generation"]:
        raise UserError(
            f"{checkpoint}: written by a version of Shepherd that learned with other numbers; evaluate and "
            f"serve it as ever, or start a new run from its weights with init_from={checkpoint}"
        )
    extensible = may_extend(config, now["tier"])
    for name, old, new in other_learning(before, now):
        if name == "init_from" or (extensible and name == "algo.total_steps"):
            continue
        raise UserError(
            f"{name}={spell(new)}: {checkpoint} was trained with {spell(old)}; set it back, "
            f"or start a new run from its weights with init_from={checkpoint}"
        )


def other_learning(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Differences of two learning halves of fingerprints that have the runs learn something else.

    Left out is what decides nothing: a key of which only an older version said that it does, and one that is younger
    than one of the halves where the other has its default.

    Args:
        one: a learning half.
        other: another.

    Yields:
        (key, value of the one, value of the other).
    """
    names = {at(half, "config.algo.name") for half in (one, other)}
    entry = ALGORITHMS.get(names.pop()) if len(names) == 1 else None
    classes = (RunConfig, *([entry.Config] if entry else []))
    known = {"config": defaults(RunConfig) | {"algo": defaults(entry.Config) if entry else {}}}
    for key, old, new in differences(one, other):
        name = key.removeprefix("config.").removeprefix("boundary.")
        if key.startswith("config.") and not _decides(name, classes):
            continue
        there = [value for half in (one, other) if (value := at(half, key, _GONE)) is not _GONE]
        if len(there) == 1 and there[0] == at(known, key, _GONE):
            continue
        yield name, old, new


def _decides(name: str, classes: tuple[type, ...]) -> bool:
    """Tell whether a key of the config decides what is learned; one that no class knows did."""
    cls: type | None = classes[0]
    if name.startswith("algo."):
        cls, name = classes[-1] if len(classes) > 1 else None, name.removeprefix("algo.")
    for part in name.split("."):
        field = None if cls is None else {field.name: field for field in dataclasses.fields(cls)}.get(part)
        if cls is None or field is None:
            return True
        if not field.metadata.get("learning", True):
            return False
        cls = nested_class(types_of(cls)[part])
    return True


def warn_of_other_machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say in which versions, device or code two machine halves of a fingerprint differ: the bits may, too."""
    for key, old, new in differences(before, now):
        bits = (
            "to the same bits unless what learns has changed"
            if key.startswith(("code.", "plugins."))
            else "but not to the same bits"
        )
        log.warning("%s is %s, was %s: the run goes on, %s", key, new, old, bits)
