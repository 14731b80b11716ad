"""Changes that a run may make when it goes on: nothing that would have made it learn something else so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.config.groups import RunConfig
from rlcore.config.schema import defaults
from rlcore.config.values import at, plain, spell
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.run_config import learning_half
from rlcore.train.fingerprint import differences

log = logging.getLogger(__name__)
_GONE = object()

NEUTRAL = ("env.vectorization",)  # keys of which older fingerprints say that they decide what is learned


def may_extend(config: RunConfig, tier: str) -> bool:
    """Whether a run may get another `algo.total_steps` and learn the same: nothing so far depends on its end.

    Annealed coefficients do; and where checkpoints cut open episodes, so does the last one.
    """
    return not config.algo.annealed and tier != "boundary"


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
            continue
        annealed = ", ".join(f"algo.{name}" for name in before.algo.annealed) if key == "algo.total_steps" else ""
        why = f" ({annealed}: the coefficient falls until there)" if annealed else ""
        raise UserError(
            f"{key}={spell(new)}: this run learns with {key}={spell(old)}, and a resumed run learns what it would have "
            f"learned{why}; start a new run from its weights with init_from={run.path}"
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
    known = {"config": defaults(RunConfig) | {"algo": defaults(type(config.algo))}}
    for key, old, new in differences(before, now):
        if at(before, key, _GONE) is _GONE and new == at(known, key, _GONE):
            continue  # a key that is younger than the checkpoint, which learned as its default has it
        name = key.removeprefix("config.").removeprefix("boundary.")
        if name == "init_from" or name in NEUTRAL or (extensible and name == "algo.total_steps"):
            continue
        if at(now, key, _GONE) is _GONE and at(plain(config), name, _GONE) is not _GONE:
            continue  # a key that has decided something once, and no longer does
        raise UserError(
            f"{name}={spell(new)}: {checkpoint} was trained with {spell(old)}; set it back, "
            f"or start a new run from its weights with init_from={checkpoint}"
        )


def warn_of_other_machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say in which versions, device or code two machine halves of a fingerprint differ: the bits may, too."""
    for key, old, new in differences(before, now):
        bits = (
            "to the same bits unless what learns has changed"
            if key.startswith(("code.", "plugins."))
            else "but not to the same bits"
        )
        log.warning("%s is %s, was %s: the run goes on, %s", key, new, old, bits)
