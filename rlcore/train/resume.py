"""Rules for changes of a run that resumes: a change must not affect the training that is already done."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.compiled.when_to_compile import decide
from rlcore.config.callbacks import KEY as CALLBACKS
from rlcore.config.learning_half import EXTENDS, learning_half
from rlcore.config.run import RunConfig
from rlcore.config.schema import defaults, nested_class, types_of
from rlcore.config.values import at, plain, spell
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.fingerprint import differences, learning_settings
from rlcore.train.resume_point import ResumePoint

log = logging.getLogger(__name__)
_MISSING = object()
# Starts of the keys on which the saved state of environments, replay buffer and counters depends.
STATE_KEYS = (
    "algo.name",
    "algo.learning_starts",
    "algo.per_rank_pretrain_steps",
    "algo.replay_ratio",
    "buffer.",
    "env.",
    "fabric.devices",
    "tier",
)
CHANGEABLE_ENV_KEYS = ("env.clip_rewards", "env.config", "env.reward_scale")  # no saved state depends on them


def check_resumed(point: ResumePoint, now: Mapping[str, Any], config: RunConfig) -> None:
    """Compare the fingerprint `now` of the current process with that of the checkpoint.

    Raise a UserError if the resumed run would train differently. Log other differences, such as library versions,
    because results may then not be bit-identical.
    """
    stored = point.fingerprint
    refuse_other_learning(stored["learning"], now["learning"], config, point.path)
    warn_of_other_machine(stored["machine"], now["machine"])


def refuse_unfit(source: Path, config: RunConfig) -> None:
    """Raise a UserError if a new run cannot start from a checkpoint. The trainer repeats this check.

    Args:
        source: value of `checkpoint.resume_from`.
        config: config of the new run.

    Raises:
        UserError: If the checkpoint is missing or damaged, or its run was trained differently; describes the fix.
    """
    key = f"checkpoint.resume_from={source}"
    if RunDirectory(source).config.exists():
        newest = checkpoint.newest_good(RunDirectory(source).checkpoints)
        new = (
            f"to start a new run from it, set checkpoint.resume_from={newest}"
            if newest
            else "it has no valid checkpoint yet"
        )
        raise UserError(f"{key}: this is a run, not a checkpoint; to resume it, use `shepherd resume {source}`; {new}")
    if not (source / "manifest.json").is_file():
        others = ", ".join(str(path) for path in checkpoint.newest_first(source.parent))
        raise UserError(
            f"{key}: this is not the folder of a checkpoint; "
            + (f"choose one of {others}" if others else "give such a folder, for example runs/a/checkpoints/8192")
        )
    if wrong := checkpoint.damage(source):
        raise UserError(f"{key}: the checkpoint is damaged ({wrong}); choose another one")
    stored = ResumePoint.at(source).fingerprint
    # The tier of the new run is not known yet. It follows from the `env` group, which must be equal in both runs.
    now = learning_settings(config, stored["learning"]["tier"], decide(config, stored, lambda: None))
    refuse_other_learning(stored["learning"], now, config, source)
    refuse_smaller_budget(config, checkpoint.policy_steps(source), str(source))


def may_extend(config: RunConfig, tier: str) -> bool:
    """Return True if `algo.total_steps` may change on resume, because the training already done does not depend on it.

    It may not change if coefficients are annealed over `algo.total_steps`. It may also not change if `tier` (the method
    by which unfinished episodes continue on resume) is "boundary": the last checkpoint then truncates these episodes.
    """
    return not config.algo.annealing_keys and tier != "boundary"


def refuse_other_config(run: RunDirectory, before: RunConfig, config: RunConfig) -> None:
    """Raise a UserError if a new config would change how an existing run is trained.

    Args:
        run: run directory.
        before: current config of the run.
        config: the new config.

    Raises:
        UserError: If a key that affects training differs. The message gives the key, both values and the fix.
    """
    extensible = may_extend(before, run.read_card()["tier"] if run.card.exists() else "")
    wrong = {key: (old, new) for key, old, new in differences(learning_half(before), learning_half(config))}
    if extensible and wrong.pop("algo.total_steps", None):
        newest = checkpoint.newest_good(run.checkpoints)
        refuse_smaller_budget(config, checkpoint.policy_steps(newest) if newest else 0, str(run.path))
    if not wrong:
        return
    names = before.algo.annealing_keys if "algo.total_steps" in wrong else ()
    why = f" (the effect of {', '.join(f'algo.{name}' for name in names)} depends on algo.total_steps)" if names else ""
    there, here = (", ".join(f"{key}={spell(pair[i])}" for key, pair in wrong.items()) for i in (0, 1))
    changes = {key: new for key, _, new in differences(plain(before), plain(config))}
    raise UserError(
        f"{here}: this run was started with {there}, which cannot change on resume{why}; {_alternative(run, changes)}"
    )


def shapes_state(key: str, tier: str) -> bool:
    """Return True if the state of a run fits only one value of a config key, so that an extended run cannot change it.

    `tier` is the method by which the state of the environments is restored. With "replay", it follows from the seed.
    """
    if key == "seed":
        return tier == "replay"
    return key.startswith(STATE_KEYS) and not key.startswith(CHANGEABLE_ENV_KEYS)


def _alternative(run: RunDirectory, changes: Mapping[str, Any]) -> str:
    """Return the end of a message: how a new run can start from this run with other values of these keys."""
    weights = f"to start a new run from its weights, set init_from={run.path}"
    # The command is short and needs no quotes.
    typed = EXTENDS not in changes and not any(isinstance(new, (list, tuple, Mapping)) for new in changes.values())
    fits = not any(shapes_state(key, "replay") for key in changes)
    if not fits or not typed or not any(checkpoint.newest_first(run.checkpoints)):
        return weights
    values = " ".join(f"{key}={spell(new)}" for key, new in changes.items())
    return f"to train further in a new run, use `shepherd extend {run.path} {values}`; {weights}"


def refuse_smaller_budget(config: RunConfig, done: int, place: str, extends: bool = False) -> None:
    """Raise a UserError if `algo.total_steps` is less than `done`, the number of policy steps already trained.

    Args:
        config: config of the run.
        done: number of policy steps already trained.
        place: path of the run or checkpoint, for the message.
        extends: True if a new run extends this run. Its budget must be larger than `done`.
    """
    if config.algo.budget(config.width) < done + extends:
        advice = "a larger number" if extends else f"{done} or more, or evaluate an earlier checkpoint (--checkpoint)"
        raise UserError(
            f"algo.total_steps={config.algo.total_steps}: {place} was trained for {done:,} policy steps already; "
            f"set {advice}"
        )


def refuse_other_learning(
    before: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig, checkpoint: Path
) -> None:
    """Raise a UserError if a run that resumes from a checkpoint would train differently.

    Args:
        before: entry `learning` of the fingerprint in the checkpoint: the settings that affect training.
        now: entry `learning` of the fingerprint of the resumed run.
        config: config of the resumed run.
        checkpoint: directory of the checkpoint, for the message.

    Raises:
        UserError: If a setting that affects training differs. The message gives the key, both values and the fix.
    """
    if before.get("generation") != now["generation"]:
        raise UserError(
            f"{checkpoint}: written by a version of Shepherd that trains differently, so it cannot be resumed (it can "
            f"be evaluated and served); to start a new run from its weights, set init_from={checkpoint}"
        )
    extensible = may_extend(config, now["tier"])
    for name, old, new in other_learning(before, now):
        if name in ("init_from", EXTENDS) or (extensible and name == "algo.total_steps"):
            continue
        raise UserError(
            f"{name}={spell(new)}: {checkpoint} was trained with {spell(old)}; set it back, "
            f"or start a new run from its weights with init_from={checkpoint}"
        )


def other_learning(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Compare the entries `learning` of two fingerprints, and yield the differences that affect training.

    The fingerprints may be from different versions of Shepherd. Two kinds of differences are skipped: keys that affect
    training only according to an older version, and keys that only one version knows, if they have their default.

    Args:
        one: entry `learning` of a fingerprint.
        other: entry `learning` of another fingerprint.

    Yields:
        (key, value in `one`, value in `other`).
    """
    names = {at(half, "config.algo.name") for half in (one, other)}
    entry = ALGORITHMS.get(names.pop()) if len(names) == 1 else None
    classes = (RunConfig, *([entry.Config] if entry else []))
    known = {"config": defaults(RunConfig) | {"algo": defaults(entry.Config) if entry else {}}}
    for key, old, new in differences(one, other):
        name = key.removeprefix("config.").removeprefix("boundary.")
        if key.startswith("config.") and not _decides(name, classes):
            continue
        values = [value for half in (one, other) if (value := at(half, key, _MISSING)) is not _MISSING]
        if len(values) == 1 and values[0] == at(known, key, _MISSING):
            continue
        yield name, old, new


def _decides(name: str, classes: tuple[type, ...]) -> bool:
    """Return True if a config key affects training. Keys that no config class has are assumed to affect it."""
    if name in (EXTENDS, CALLBACKS):  # of the callbacks, only those that may change training are in the learning half
        return True
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
    """Log the differences between the entries `machine` of two fingerprints: device, versions and code.

    Because of these differences, the resumed run may not be bit-identical to an uninterrupted run.
    """
    for key, old, new in differences(before, now):
        bits = (
            "and is bit-identical unless the learning code has changed"
            if key.startswith(("code.", "plugins."))
            else "but will not be bit-identical"
        )
        log.warning("%s is %s, was %s: the run continues, %s", key, new, old, bits)
