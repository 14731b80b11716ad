"""Reading of datasets, whose rows fill a replay buffer before training.

A dataset is named by one of:

    minari:NAME                     a Minari dataset
    RUN/dataset                     the episodes of the random policy, which the stage `collect` wrote
    RUN/checkpoints/POLICY_STEPS    the replay buffer in a checkpoint; RUN stands for its newest checkpoint

torch is imported only if the rows of a dataset are read.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import checkpoint, minari_datasets
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlcore.config.groups import EnvConfig

MINARI = "minari:"


def is_minari(source: str) -> bool:
    """Return True if the name of a dataset has the form `minari:NAME`."""
    return source.startswith(MINARI)


def locate(source: str) -> str:
    """Return the path of the newest checkpoint if `source` is a run or a folder of checkpoints.

    Other names are returned unchanged, also if the dataset does not exist.

    Raises UserError if a run has no checkpoint.
    """
    found = None if is_minari(source) else checkpoint.locate(Path(source), checkpoint.resolve)
    return source if found is None or found == Path(source) else str(found.absolute())


def _is_checkpoint(source: str) -> bool:
    return not is_minari(source) and (Path(source) / "learning").is_dir()


def read_spec(source: str) -> EnvSpec:
    """Return the spec of a dataset: its observation keys and its action space.

    Raises UserError if the dataset does not exist or cannot be read.
    """
    if is_minari(source):
        return minari_datasets.read_spec(source.removeprefix(MINARI))
    if _is_checkpoint(source):
        return EnvSpec.from_json(RunDirectory.of_checkpoint(Path(source).absolute()).read_card()["spec"])
    try:
        return EnvSpec.from_json(json.loads((Path(source) / "manifest.json").read_text())["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{source}: cannot read a dataset ({type(error).__name__}: {error}); give minari:NAME, the path of the "
            "folder `dataset` in a run, or that of a run or checkpoint with a replay buffer"
        ) from None


def read_rows(source: str, spec: EnvSpec, env: EnvConfig) -> TensorDict:
    """Load all rows of a dataset.

    Args:
        source: name of the dataset.
        spec: spec of the environment to train on; the dataset must have the same observation keys and actions.
        env: config of the environment to train on.

    Returns:
        The rows of K environments, [T, K], with the columns that `rlcore.data.dataset` describes; K is 1 for a Minari
        dataset.

    Raises:
        UserError: the dataset does not exist, is damaged, or does not fit the environment (see `refuse_unfit`).
    """
    import torch

    from rlcore.data.dataset import load_dataset, make_dataset

    source = locate(source)
    refuse_unfit(source, spec, env)
    if _is_checkpoint(source):
        return _read_replay(Path(source).absolute())
    if not is_minari(source):
        return load_dataset(source)
    found = minari_datasets.read(source.removeprefix(MINARI), spec.obs)
    return make_dataset({name: torch.from_numpy(rows[:, None]) for name, rows in found.items()})


def _read_replay(path: Path) -> TensorDict:
    """Load the rows in the replay buffers of all ranks from a checkpoint; K is the number of all environments."""
    import torch

    from rlcore.data.dataset import as_dataset
    from rlcore.data.replay import stored_rows
    from rlcore.evaluation.policy import load_policy

    states, agent = checkpoint.load(path)[0]["ranks"], load_policy(path).agent
    env = config_of(RunDirectory.of_checkpoint(path)).env
    try:
        stored = [stored_rows(state["buffer"]) for state in states.values()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path}: learning/state.json does not contain a replay buffer of `rlcore.data.replay` "
            f"({type(error).__name__}: {error}); choose another checkpoint"
        ) from error
    rows: list[Any] = [as_dataset(steps, agent, env) for steps in stored]
    whole: Any = torch.cat(rows, 1)
    return whole


def refuse_unfit(source: str, spec: EnvSpec, env: EnvConfig) -> None:
    """Raise UserError if a dataset does not fit an environment; the message describes the first difference.

    Args:
        source: name of the dataset, from `locate`.
        spec: spec of the environment, with which observation keys and actions are compared.
        env: config of the environment. Rewards that were transformed by tanh (`env.clip_rewards`) cannot be restored.
    """
    if _is_checkpoint(source):
        _refuse_checkpoint(Path(source), env)
    for difference in _differences(read_spec(source), spec):
        raise UserError(f"{source}: {difference}; choose a dataset of {spec.id}")


def _refuse_checkpoint(path: Path, env: EnvConfig) -> None:
    """Raise UserError if a checkpoint is damaged, has no replay buffer, or clips rewards in another way than `env`."""
    if wrong := _damage(path.absolute(), path.stat().st_mtime_ns):
        raise UserError(f"{path}: the checkpoint is damaged ({wrong}); choose another one")
    theirs = config_of(run := RunDirectory.of_checkpoint(path.absolute())).env
    if not checkpoint.manifest(path).get("chunks"):
        raise UserError(
            f"{path}: this checkpoint of {run.read_config()['algo']['name']} has no replay buffer with rows; choose a "
            f"later checkpoint, a run of an off-policy algorithm such as sac, or {run.dataset}"
        )
    if theirs.clip_rewards and (theirs.reward_scale, True) != (env.reward_scale, env.clip_rewards):
        raise UserError(
            f"{path}: its rewards are clipped (env.clip_rewards=true), so that the original ones cannot be restored; "
            f"set env.clip_rewards=true and env.reward_scale={theirs.reward_scale:g}"
        )


@functools.cache
def _damage(path: Path, changed: int) -> str | None:
    """Return `checkpoint.damage(path)`. A sweep asks for it many times before its first trial.

    `changed` is the time of the last change of the folder, in nanoseconds.
    """
    return checkpoint.damage(path)


def digest(source: str) -> str:
    """Return the digest of a checkpoint, or the SHA-256 over the names and contents of all files of another dataset."""
    if _is_checkpoint(source):
        return checkpoint.manifest(Path(source))["digest"]
    root = minari_datasets.folder(source.removeprefix(MINARI)) if is_minari(source) else Path(source)
    whole = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        stat = path.stat()
        whole.update(f"{path.relative_to(root)} {_file_digest(path, stat.st_size, stat.st_mtime_ns)}\n".encode())
    return whole.hexdigest()


@functools.cache
def _file_digest(path: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a file. A sweep asks for it many times before its first trial."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _differences(theirs: EnvSpec, ours: EnvSpec) -> Iterator[str]:
    """Yield a description of each difference between the spaces of a dataset and those of an environment."""
    for key, part in ours.obs.items():
        if (found := theirs.obs.get(key)) is None:
            yield f"it has no observation {key!r}, only {', '.join(theirs.obs) or 'ones that agents cannot use'}"
        elif (found.shape, found.n, found.start, _kind(found)) != (part.shape, part.n, part.start, _kind(part)):
            yield f"its observation {key!r} is {_spelt(found)}, but the environment's is {_spelt(part)}"
    if (there := _spelt_action(theirs.action)) != (here := _spelt_action(ours.action)):
        yield f"its actions are {there}, but the environment's are {here}"


def _kind(part: ArraySpec | ActionSpec) -> str:
    """Return the kind of a dtype, without its size: "f" for floats, "u" for uint8, "i" for other integers and bool."""
    kind = np.dtype(part.dtype).kind
    return "i" if kind in "iub" and part.dtype != "uint8" else kind


def _spelt(part: ArraySpec) -> str:
    return f"{part.n} values from {part.start}" if part.n is not None else f"{list(part.shape)} of {part.dtype}"


def _spelt_action(action: ActionSpec) -> str:
    if action.parts:
        return ", ".join(
            f"{name}: {_spelt_action(part)}" for name, part in zip(action.names, action.parts, strict=True)
        )
    if not action.continuous:
        return f"{action.space} {list(action.nvec)} from {list(action.start)}, of shape {list(action.shape)}"
    low, high = (np.asarray(bound, np.float32) for bound in (action.low, action.high))
    bounds = ", ".join(f"{a:g} to {b:g}" for a, b in dict.fromkeys(zip(low.tolist(), high.tolist(), strict=True)))
    return f"{action.space} {list(action.shape)} from {bounds}"
