"""Steps as a TensorDict: how datasets and replay memories are looked at, cut, stacked and handed to other libraries.

    obs/<key> [T, B, ...]   action [T, B, ...]   reward, terminated, truncated, is_first [T, B]   (and extras/<key>)

Rows are aligned as in rlcore/types.py. The hot loop does without: a TensorDict costs microseconds a call.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore.data.arrivals import FLAGS, as_steps
from rlcore.data.steps import learned_reward
from rlcore.errors import UserError
from rlcore.types import Steps

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlcore.protocols import Agent
    from rlcore.spec import ActionSpec, ArraySpec
    from rlcore.types import Context


def as_tensordict(steps: Steps) -> TensorDict:
    """Steps [T, B] as a TensorDict of that batch size, without a copy; carries stay behind."""
    from tensordict import TensorDict  # half a second

    parts = {"obs": steps.obs, "action": steps.action} | {flag: getattr(steps, flag) for flag in FLAGS}
    return TensorDict(parts | ({"extras": steps.extras} if steps.extras else {}), batch_size=steps.reward.shape)


@torch.no_grad()
def as_collected(rows: TensorDict, agent: Agent, context: Context) -> tuple[Steps, Steps]:
    """Rows of a dataset as this rank's collector would have handed them out, for a memory to begin with.

    The recordings of the dataset's environments are laid one behind the other, cut into pieces of equal length, and
    each environment of each rank gets one. A recording and a piece begin with `is_first`, so nothing is learned across.

    Args:
        rows: [T, K] of any number of environments, `action` in the environment's form.
        agent: whose form the actions are to have.
        context: of the training: what its environments are, how many, on how many ranks.

    Returns:
        Steps [T', B] on the CPU and the arrival [B] after them, as `Buffer.extend` takes them.

    Raises:
        UserError: the rows are of another environment, or too few.
    """
    spec, flat = context.spec, rows.transpose(0, 1).reshape(-1)
    columns = {f"obs/{key}": _column(flat, ("obs", key), f"observation {key!r}", spec.obs[key]) for key in spec.obs}
    columns |= {flag: flat.get(flag).clone() for flag in FLAGS}
    columns["is_first"][:: len(rows)] = True
    taken = _column(flat, "action", "actions", spec.action)
    columns["action"] = agent.from_env(taken.to(context.fabric.device)).cpu()
    columns["reward"] = learned_reward(context.config.env, columns["reward"])
    width, ranks = context.num_envs, context.ranks
    length = len(taken) // (width * ranks.size)
    if length < 2:
        raise UserError(f"the dataset has {len(taken)} rows, too few for {width * ranks.size} environments")
    of_rank = slice(ranks.rank * width * length, (ranks.rank + 1) * width * length)
    pieces = {name: rows[of_rank].unflatten(0, (width, length)).transpose(0, 1) for name, rows in columns.items()}
    pieces["is_first"][0] = True
    steps, last = ({name: piece[at].contiguous() for name, piece in pieces.items()} for at in (slice(-1), -1))
    return as_steps(steps, steps["action"]), as_steps(last, last["action"])


def _column(rows: TensorDict, key: Any, what: str, spec: ArraySpec | ActionSpec) -> torch.Tensor:
    """Rows [N, ...] of a key in the environment's dtype; a UserError where they are not of its shape, or not there."""
    column = rows.get(key, None)
    if column is None:
        raise UserError(f"the dataset has no {what}; it has {', '.join(map(str, rows.get('obs').keys()))}")
    if column.shape[1:] != spec.shape:
        shapes = f"{list(column.shape[1:])}, the environment's are {list(spec.shape)}"
        raise UserError(f"the dataset has {what} of shape {shapes}")
    return column.to(getattr(torch, spec.dtype))


def load_dataset(folder: Path | str) -> TensorDict:
    """The dataset that `collect` wrote, as `runs/mine/dataset`: [T, B]; `action` is in the environment's form.

    `as_collected` makes of it what a memory can begin with.

    A UserError, naming the file, where there is none or a byte has changed.
    """
    from safetensors.torch import load

    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        columns: dict[str, list[torch.Tensor]] = {}
        for name, entry in manifest["files"].items():
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise UserError(f"{folder / name}: not what was written; collect it again")
            for key, rows in load(content).items():
                columns.setdefault(key, []).append(rows)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no dataset can be read there ({error}); a run has one after `collect`") from None
    whole = {key: torch.cat(parts) for key, parts in columns.items()}
    return as_tensordict(as_steps(whole, whole["action"]))
