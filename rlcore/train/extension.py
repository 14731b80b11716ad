"""Extended run: a new run that starts from the complete state of another run (`checkpoint.extend_from`).

Agent, optimizers, normalizers, replay buffer, counters, random streams and environments continue as in a resumed run.
Settings may change if they do not change the shape of this state; annealed values follow the new `algo.total_steps`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rlcore.compiled.when_to_compile import decide
from rlcore.config.learning_half import EXTENDS
from rlcore.config.run import RunConfig
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.functional.tree import name_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from rlcore.store.series import evaluation_means
from rlcore.train.components import find_all
from rlcore.train.counting import build_empty
from rlcore.train.fingerprint import learning_settings
from rlcore.train.loop import TrainingLoop
from rlcore.train.resume import other_learning, refuse_smaller_budget, shapes_state, warn_of_other_machine
from rlcore.train.resume_point import ResumePoint
from rlcore.train.stop_conditions import StopConditions

log = logging.getLogger(__name__)
SAME_STATE = {"adam", "adamw"}  # optimizers with the same state; equal shapes of others have another meaning
SHOWN_TENSORS = 3  # number of tensors with other shapes that a message names


def locate_state(path: Path) -> Path:
    """Return the checkpoint from which a run is extended.

    Args:
        path: a run, whose newest undamaged checkpoint is returned; a checkpoint; or a folder of checkpoints.

    Returns:
        The path of the checkpoint.

    Raises:
        UserError: If there is no undamaged checkpoint of a run at `path`, for example because it is an exported policy.
    """
    if (path / "policy.json").exists() or (path / "part.json").exists():
        raise UserError("an exported policy has no training state; give the run that trained it")
    found = checkpoint.locate(path, lambda run: checkpoint.newest_good(run.checkpoints, with_chunks=True) or run.path)
    if found is None or (found == path and not (path / "manifest.json").exists()):
        missing = "no undamaged checkpoint yet" if RunDirectory(path).config.exists() else "no run or checkpoint here"
        raise UserError(f"{missing}; give a run that has a checkpoint, as runs/a, or runs/a/checkpoints/8192")
    if wrong := checkpoint.damage(found):
        raise UserError(f"checkpoint {found} is damaged ({wrong}); choose another one")
    try:
        RunDirectory.of_checkpoint(found.absolute())
    except UserError:
        raise UserError("this checkpoint is not in the folder of a run; give a run or one of its checkpoints") from None
    return found


def refuse_unfit(source: Path, config: RunConfig, spec: EnvSpec) -> None:
    """Raise a UserError if a run cannot be extended with a config; the message lists all keys that do not fit.

    Args:
        source: checkpoint from which the run is extended.
        config: config of the new run.
        spec: spec of the new run's environment.
    """
    point = ResumePoint.at(source)
    before = point.fingerprint["learning"]
    # The tier of the new run is not known yet. It follows from the `env` group, which must be equal in both runs.
    now = learning_settings(config, before["tier"], decide(config, point.fingerprint, lambda: None))
    refuse_other_state(before, now, config, source)
    with point.reading():
        _refuse_other_shapes(point.learning["learner"], before, now, config, spec, source)
    done = checkpoint.policy_steps(source)
    if done % (rows := config.algo.collect_length * config.width):
        raise UserError(
            f"an iteration has {rows:,} policy steps ({config.algo.collect_length} in each of {config.width} "
            f"environments), but {source} was trained for {done:,}, which is not a multiple; choose another length of "
            "the rollouts"
        )
    refuse_smaller_budget(config, done, str(source), extends=True)
    conditions = StopConditions.from_config(config.stop, config.env.info_keys)
    events = history(RunDirectory.of_checkpoint(source.absolute()).events).evaluations
    scores, infos = evaluation_means(event for event in events if event["policy_steps"] <= done)
    with point.reading():
        conditions.load_state_dict(point.bookkeeping.get("stop", {}), scores, infos)
    if conditions.reason:
        raise UserError(f"stop: {conditions.reason} holds already in {source}; change the condition, or set stop=[]")


def refuse_other_state(before: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig, source: Path) -> None:
    """Raise a UserError if the state of a run does not fit the settings of the run that extends it.

    Args:
        before: entry `learning` of the fingerprint in the checkpoint: the settings that affect training.
        now: entry `learning` of the fingerprint of the new run.
        config: config of the new run.
        source: the checkpoint, for the message.
    """
    if before.get("generation") != now["generation"]:
        raise UserError(
            f"{source}: written by a version of Shepherd that trains differently, so it cannot be extended; to start a "
            f"new run from its weights, set init_from={source}"
        )
    wrong = {
        key: (old, new)
        for key, old, new in other_learning(before, now)
        if shapes_state(key, now["tier"]) or (key.endswith("optimizer.name") and {old, new} != SAME_STATE)
    }
    if not config.algo.count_remembered(config):  # no replay buffer, and the rollout of a checkpoint is empty
        wrong = {key: values for key, values in wrong.items() if not key.startswith("buffer.")}
    if "algo.name" in wrong:
        wrong = {"algo.name": wrong["algo.name"]}
    if wrong:
        texts = ", ".join(f"{key}={spell(new)} (there {spell(old)})" for key, (old, new) in wrong.items())
        raise UserError(
            f"{texts}: cannot differ from the values in {source}, because its state does not fit; set them back, or "
            f"start a new run from its weights with init_from={source}"
        )


def _refuse_other_shapes(
    theirs: Any, before: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig, spec: EnvSpec, source: Path
) -> None:
    changed = [key for key, *_ in other_learning(before, now) if key not in ("algo.total_steps", EXTENDS)]
    if not changed:
        return
    try:
        ours = build_empty(config, spec)[0]
    except UserError:
        raise
    except Exception:  # the code may need values of tensors; the trainer then compares the shapes
        log.debug("the state of %s cannot be built without values", config.algo.name, exc_info=True)
        return
    wrong = list(_other_shapes(theirs, ours))
    if wrong:
        more = f" and {len(wrong) - SHOWN_TENSORS:,} more" if len(wrong) > SHOWN_TENSORS else ""
        keys = ", ".join(key for key in changed if key.startswith(("algo.", "distribution.", "fabric.")))
        raise UserError(
            f"{keys}: changes the shape of the state in {source} ({'; '.join(wrong[:SHOWN_TENSORS])}{more}); set the "
            "keys back"
        )


def _other_shapes(theirs: Any, ours: Any) -> Iterator[str]:
    """Yield a text for each tensor whose shape differs in two states of a learner, or that only one of them has.

    A tensor without elements in `ours`, the state before training, is skipped: it gets its size in training.
    """
    one, other = (
        {name.removeprefix("."): list(leaf.shape) for name, leaf in name_leaves(state, "").items() if _is_tensor(leaf)}
        for state in (theirs, ours)
    )
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name) and 0 not in other.get(name, ()):
            yield f"{name}: {one.get(name, 'absent')} there, {other.get(name, 'absent')} here"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def check_extended(point: ResumePoint, now: Mapping[str, Any], config: RunConfig) -> None:
    """Compare the fingerprint `now` of an extended run with that of the checkpoint from which it starts.

    Raise a UserError if the state does not fit. Log the settings that differ, and differences of the machine.
    """
    stored = point.fingerprint
    refuse_other_state(stored["learning"], now["learning"], config, point.path)
    changes = [
        f"{key}={spell(new)} (was {spell(old)})"
        for key, old, new in other_learning(stored["learning"], now["learning"])
        if key not in ("init_from", EXTENDS)
    ]
    log.info("extends %s%s", point.path, f" with {', '.join(changes)}" if changes else "")
    warn_of_other_machine(stored["machine"], now["machine"])


def use_new_settings(training: TrainingLoop, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Replace the values in a restored state that follow from the config: number of iterations and learning rates.

    Args:
        training: a training whose state was restored from the checkpoint of another run.
        before: settings of that run (entry `learning` of its fingerprint).
        now: settings of the extended run.
    """
    rows = training.plan.collect_length * training.context.num_envs * training.ranks.size
    training.iterations = training.policy_steps // rows
    if any(key.endswith(".lr") for key, *_ in other_learning(before, now)):
        for optimizer in find_all(training.learner, Optimizer).values():
            optimizer.set_lr(optimizer.config.lr)
