"""Steps as a TensorDict: how datasets and replay memories are looked at, cut, stacked and handed to other libraries.

    obs/<key> [T, B, ...]   action [T, B, ...]   reward, terminated, truncated, is_first [T, B]   (and extras/<key>)

Rows are aligned as in rlcore/types.py. The hot loop does without: a TensorDict costs microseconds a call.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlcore.data.arrivals import FLAGS, as_steps
from rlcore.errors import UserError
from rlcore.types import Steps

if TYPE_CHECKING:
    from tensordict import TensorDict


def as_tensordict(steps: Steps) -> TensorDict:
    """Steps [T, B] as a TensorDict of that batch size, without a copy; carries stay behind."""
    from tensordict import TensorDict  # half a second

    parts = {"obs": steps.obs, "action": steps.action} | {flag: getattr(steps, flag) for flag in FLAGS}
    return TensorDict(parts | ({"extras": steps.extras} if steps.extras else {}), batch_size=steps.reward.shape)


def from_tensordict(rows: TensorDict) -> Steps:
    """`as_tensordict` undone, without a copy."""
    obs, extras = rows.get("obs"), rows.get("extras", None)
    action, reward, terminated, truncated, is_first = (rows.get(name) for name in ("action", *FLAGS))
    said = dict(extras.items()) if extras is not None else {}
    return Steps(dict(obs.items()), action, reward, terminated, truncated, is_first, said)


def load_dataset(folder: Path | str) -> TensorDict:
    """The dataset that `collect` wrote, as `runs/mine/dataset`: [T, B]; `action` is in the environment's form.

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
