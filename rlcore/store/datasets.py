"""Datasets by the words that name them: a folder that `collect` wrote, or `minari:NAME`; torch-free until read."""

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
    """Tell whether a dataset is named as one of Minari's."""
    return source.startswith(MINARI)


def read_spec(source: str) -> EnvSpec:
    """Observation keys and action of a dataset; a UserError where none is there."""
    if is_minari(source):
        return minari_datasets.read_spec(source.removeprefix(MINARI))
    try:
        return EnvSpec.from_json(json.loads((Path(source) / "manifest.json").read_text())["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{source}: no dataset can be read there ({type(error).__name__}: {error}); give minari:NAME, or the "
            "folder `dataset` of a run"
        ) from None


def read_rows(source: str, spec: EnvSpec) -> TensorDict:
    """Rows [T, K] of a dataset, as `rlcore.data.dataset` has them.

    Args:
        source: the dataset.
        spec: of the environment that they are wanted for.

    Returns:
        The rows; `action` is in the environment's form.

    Raises:
        UserError: there is none, it is damaged, or of other spaces.
    """
    import torch

    from rlcore.data.arrivals import as_steps
    from rlcore.data.dataset import as_tensordict, load_dataset

    refuse_unfit(source, spec)
    if not is_minari(source):
        return load_dataset(source)
    found = minari_datasets.read(source.removeprefix(MINARI), spec.obs)
    columns = {name: torch.from_numpy(rows[:, None]) for name, rows in found.items()}
    return as_tensordict(as_steps(columns, columns["action"]))


def refuse_unfit(source: str, spec: EnvSpec) -> None:
    """Hold a dataset's spaces against an environment's; a UserError names the first in which they differ."""
    for difference in _differences(read_spec(source), spec):
        raise UserError(f"{source}: {difference}; name a dataset of {spec.id}")


def digest(source: str) -> str:
    """SHA-256 of a dataset's files: names and contents."""
    root = minari_datasets.folder(source.removeprefix(MINARI)) if is_minari(source) else Path(source)
    whole = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        with open(path, "rb") as handle:
            whole.update(f"{path.relative_to(root)} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _differences(theirs: EnvSpec, ours: EnvSpec) -> Iterator[str]:
    """Sentences on every space in which a dataset differs from an environment."""
    for key, part in ours.obs.items():
        if (found := theirs.obs.get(key)) is None:
            yield f"it has no observation {key!r}, only {', '.join(theirs.obs) or 'what no agent can take'}"
        elif (found.shape, found.n, found.start, _kind(found)) != (part.shape, part.n, part.start, _kind(part)):
            yield f"its observation {key!r} is {_spelt(found)}, the environment's {_spelt(part)}"
    if (there := _spelt_action(theirs.action)) != (here := _spelt_action(ours.action)):
        yield f"its actions are {there}, the environment's {here}"


def _kind(part: ArraySpec | ActionSpec) -> str:
    """The kind of numbers: how wide they are does not matter."""
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
