"""Conversion between trajectories and TensorDicts, the format of datasets that other code can read.

    obs/<key> [T, B, ...]   action [T, B, ...]   reward, terminated, truncated, is_first [T, B]   (and extras/<key>)

`reward[t]` was returned together with `obs[t]`, and `action[t]` was chosen after it (see rlcore/types.py). The training
loop does not use TensorDicts, because each operation on a TensorDict costs microseconds.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore.data.staging import FLAGS, as_trajectory
from rlcore.data.steps import transform_reward
from rlcore.errors import UserError
from rlcore.types import Trajectory

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlcore.protocols import Agent
    from rlcore.spec import ActionSpec, ArraySpec
    from rlcore.types import Context


def as_tensordict(steps: Trajectory) -> TensorDict:
    """Convert a trajectory [T, B] to a TensorDict of batch size [T, B] that shares its tensors.

    The agent's carry (recurrent state) is omitted.
    """
    from tensordict import TensorDict  # imported here, because the import takes half a second

    parts = {"obs": steps.obs, "action": steps.action} | {flag: getattr(steps, flag) for flag in FLAGS}
    return TensorDict(parts | ({"extras": steps.extras} if steps.extras else {}), batch_size=steps.reward.shape)


@torch.no_grad()
def as_collected(rows: TensorDict, agent: Agent, context: Context) -> tuple[Trajectory, Trajectory]:
    """Convert a dataset to a trajectory of this rank's training environments, to fill a replay buffer.

    The recordings of the dataset's K environments are concatenated. The result is cut into pieces of equal length, one
    for each training environment of each rank. `is_first` is set in the first row of each recording and of each piece,
    so that no transition connects two recordings or two pieces.

    Args:
        rows: dataset [T, K], with actions in the environment's format.
        agent: converts the actions to the agent's format (`Agent.from_env`).
        context: specs and number of the training environments, and number of ranks.

    Returns:
        Trajectory [T', B] on the CPU and the time step [B] after it, which are the arguments of `Buffer.extend`.

    Raises:
        UserError: keys or shapes do not match the environment, or the dataset has too few rows.
    """
    spec, flat = context.spec, rows.transpose(0, 1).reshape(-1)
    columns = {f"obs/{key}": _column(flat, ("obs", key), f"observation {key!r}", spec.obs[key]) for key in spec.obs}
    columns |= {flag: flat.get(flag).clone() for flag in FLAGS}
    columns["is_first"][:: len(rows)] = True
    taken = _column(flat, "action", "actions", spec.action)
    columns["action"] = agent.from_env(taken.to(context.fabric.device)).cpu()
    columns["reward"] = transform_reward(context.config.env, columns["reward"])
    width, ranks = context.num_envs, context.ranks
    length = len(taken) // (width * ranks.size)
    if length < 2:
        raise UserError(
            f"the dataset has {len(taken)} rows, but {width * ranks.size} environments need at least 2 rows each; "
            "use fewer environments or a larger dataset"
        )
    of_rank = slice(ranks.rank * width * length, (ranks.rank + 1) * width * length)
    pieces = {name: rows[of_rank].unflatten(0, (width, length)).transpose(0, 1) for name, rows in columns.items()}
    pieces["is_first"][0] = True
    steps, last = ({name: piece[at].contiguous() for name, piece in pieces.items()} for at in (slice(-1), -1))
    return as_trajectory(steps, steps["action"]), as_trajectory(last, last["action"])


def _column(rows: TensorDict, key: Any, what: str, spec: ArraySpec | ActionSpec) -> torch.Tensor:
    """Return a column [N, ...] in the environment's dtype.

    Raises UserError if the dataset does not have the column, or if its shape is not that of `spec`.
    """
    column = rows.get(key, None)
    if column is None:
        there = ", ".join(map(str, rows.get("obs").keys()))
        raise UserError(
            f"the dataset has no {what}, which the environment has (observation keys of the dataset: {there}); use a "
            "dataset of the same environment"
        )
    if column.shape[1:] != spec.shape:
        shapes = f"{list(column.shape[1:])}, but the environment has {list(spec.shape)}"
        raise UserError(f"the dataset has {what} of shape {shapes}; use a dataset of the same environment")
    return column.to(getattr(torch, spec.dtype))


def load_dataset(folder: Path | str) -> TensorDict:
    """Load a dataset that `shepherd collect` wrote.

    Args:
        folder: folder of the dataset, such as `runs/mine/dataset`.

    Returns:
        TensorDict [T, B] with actions in the environment's format. `as_collected` converts it for a replay buffer.

    Raises:
        UserError: there is no dataset in the folder, or a file was changed; the message names the file.
    """
    from safetensors.torch import load

    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        columns: dict[str, list[torch.Tensor]] = {}
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise UserError(f"{folder / name}: the content does not match its SHA-256; collect the dataset again")
            for key, rows in load(content).items():
                columns.setdefault(key, []).append(rows)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder}: cannot read a dataset ({error}); create one with `shepherd collect`, which writes it into the "
            "run directory"
        ) from None
    whole = {key: torch.cat(parts) for key, parts in columns.items()}
    return as_tensordict(as_trajectory(whole, whole["action"]))
