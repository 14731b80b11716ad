"""Datasets: rows that enter or leave a replay buffer, as a TensorDict [T, K] of T time steps of K environments.

    obs/<key> [T, K, ...]   action [T, K, ...]   reward, terminated, truncated, is_first [T, K]
    extras/<name> [T, K, ...]   if the replay buffer stores extra outputs of the agent (`Trajectory.extras`)

Actions are in the environment's format, and rewards are those that the environment returned, so these columns do not
depend on an algorithm. `reward[t]` was returned together with `obs[t]`, and `action[t]` was chosen after it (see
rlcore/types.py). The action and the extra outputs of the last row are ignored.

A `Trajectory` instead contains the agent's actions and the rewards to learn from. `as_collected` converts a dataset to
a trajectory, and `as_dataset` does the opposite. The training loop does not use TensorDicts, because each operation on
a TensorDict costs microseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore.data.staging import FLAGS, as_trajectory
from rlcore.data.staging import columns as columns_of
from rlcore.data.steps import restore_reward, transform_reward
from rlcore.errors import UserError
from rlcore.types import Trajectory

EXTRAS = "extras/"  # prefix of the extra outputs of an agent among the columns of a dataset

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlcore.config.groups import EnvConfig
    from rlcore.config.run import AlgorithmConfig
    from rlcore.protocols import Agent
    from rlcore.spec import ActionSpec, ArraySpec
    from rlcore.types import Context


def make_dataset(rows: Mapping[str, torch.Tensor]) -> TensorDict:
    """Create a dataset that shares the tensors of `rows`: obs/<key>, action, reward, flags, and any extras/<name>."""
    from tensordict import TensorDict  # imported here, because the import takes half a second

    found: dict[str, Any] = {name: rows[name] for name in ("action", *FLAGS)}
    for name, value in rows.items():
        if name.startswith(("obs/", EXTRAS)):
            group, _, key = name.partition("/")
            found.setdefault(group, {})[key] = value
    return TensorDict(found, batch_size=rows["reward"].shape)


@torch.no_grad()
def as_dataset(steps: Trajectory, agent: Agent, config: EnvConfig) -> TensorDict:
    """Convert a trajectory, such as the rows of a replay buffer, to a dataset that shares its observations and flags.

    The dataset also shares the extra outputs of the agent. The carry of the agent is omitted.

    Args:
        steps: trajectory [T, B].
        agent: converts the actions to the environment's format (`Agent.to_env`).
        config: settings of the environment, by which its rewards were transformed (see `restore_reward`).

    Returns:
        Dataset [T, B].
    """
    action = agent.to_env(steps.action.flatten(0, 1)).unflatten(0, steps.reward.shape)
    rows: dict[str, torch.Tensor] = columns_of(steps)
    rows |= {f"{EXTRAS}{name}": value for name, value in steps.extras.items()}
    return make_dataset(rows | {"action": action, "reward": restore_reward(config, steps.reward)})


@torch.no_grad()
def as_collected(
    rows: TensorDict, agent: Agent, context: Context[AlgorithmConfig], extras: Mapping[str, ArraySpec] | None = None
) -> tuple[Trajectory, Trajectory]:
    """Convert a dataset to a trajectory of this rank's training environments, to fill a replay buffer.

    The recordings of the dataset's K environments are concatenated. The result is cut into pieces of equal length, one
    for each training environment of each rank. `is_first` is set in the first row of each recording and of each piece,
    so that no transition connects two recordings or two pieces.

    Args:
        rows: dataset [T, K], with actions in the environment's format.
        agent: converts the actions to the agent's format (`Agent.from_env`).
        context: specs and number of the training environments, and number of ranks.
        extras: extra outputs of the agent that the replay buffer stores, name -> shape and dtype for one environment.
            They are taken from the dataset if it has all of them with these shapes and dtypes.

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
    stored = {name: flat.get(("extras", name), None) for name in extras or {}}
    if kept := all(_fits(stored[name], spec) for name, spec in (extras or {}).items()):
        columns |= {f"{EXTRAS}{name}": value for name, value in stored.items()}
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
    found = as_trajectory(steps, steps["action"])
    found.extras = {name: steps[f"{EXTRAS}{name}"] for name in stored} if kept else {}
    return found, as_trajectory(last, last["action"])


def _fits(column: torch.Tensor | None, spec: ArraySpec) -> bool:
    """Return True if a column [N, ...] exists and has the shape and dtype of `spec`."""
    return column is not None and column.shape[1:] == spec.shape and column.dtype == getattr(torch, spec.dtype)


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
    return make_dataset({key: torch.cat(parts) for key, parts in columns.items()})
