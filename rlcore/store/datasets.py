"""Reading of datasets for offline training.

A dataset is named by the path of a folder that `shepherd collect` wrote, or by `minari:NAME` if it is a Minari dataset.
torch is imported only if the rows of a dataset are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import minari_datasets

if TYPE_CHECKING:
    from tensordict import TensorDict

MINARI = "minari:"


def is_minari(source: str) -> bool:
    """Return True if the name of a dataset has the form `minari:NAME`."""
    return source.startswith(MINARI)


def read_spec(source: str) -> EnvSpec:
    """Return the spec of a dataset: its observation keys and its action space.

    Raises UserError if the dataset does not exist or cannot be read.
    """
    if is_minari(source):
        return minari_datasets.read_spec(source.removeprefix(MINARI))
    try:
        return EnvSpec.from_json(json.loads((Path(source) / "manifest.json").read_text())["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{source}: cannot read a dataset ({type(error).__name__}: {error}); give minari:NAME, or the path of the "
            "folder `dataset` in a run"
        ) from None


def read_rows(source: str, spec: EnvSpec) -> TensorDict:
    """Load all rows of a dataset.

    Args:
        source: folder, or `minari:NAME`.
        spec: spec of the environment to train on; the dataset must have the same observation keys and actions.

    Returns:
        The rows of K environments, [T, K], with the columns that `rlcore.data.dataset` describes; K is 1 for a Minari
        dataset. `action` has the format of the environment.

    Raises:
        UserError: the dataset does not exist, is damaged, or has other spaces than the environment.
    """
    import torch

    from rlcore.data.dataset import as_tensordict, load_dataset
    from rlcore.data.staging import as_trajectory

    refuse_unfit(source, spec)
    if not is_minari(source):
        return load_dataset(source)
    found = minari_datasets.read(source.removeprefix(MINARI), spec.obs)
    columns = {name: torch.from_numpy(rows[:, None]) for name, rows in found.items()}
    return as_tensordict(as_trajectory(columns, columns["action"]))


def refuse_unfit(source: str, spec: EnvSpec) -> None:
    """Raise UserError if observation keys or actions of a dataset differ from those of an environment.

    The message describes the first difference.
    """
    for difference in _differences(read_spec(source), spec):
        raise UserError(f"{source}: {difference}; choose a dataset of {spec.id}")


def digest(source: str) -> str:
    """Return the SHA-256 over the names and contents of all files of a dataset."""
    root = minari_datasets.folder(source.removeprefix(MINARI)) if is_minari(source) else Path(source)
    whole = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        with open(path, "rb") as handle:
            whole.update(f"{path.relative_to(root)} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


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
    if not action.continuous:
        return f"{action.space} {list(action.nvec)} from {list(action.start)}, of shape {list(action.shape)}"
    low, high = (np.asarray(bound, np.float32) for bound in (action.low, action.high))
    bounds = ", ".join(f"{a:g} to {b:g}" for a, b in dict.fromkeys(zip(low.tolist(), high.tolist(), strict=True)))
    return f"{action.space} {list(action.shape)} from {bounds}"
