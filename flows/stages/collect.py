"""collect: a dataset artifact. For on-policy algorithms: the uniformly random policy, the baseline of every result."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from safetensors.numpy import save

from flows.runs.listeners import tell, working
from flows.runs.milestones import note_result
from rlcore.data.arrivals import columns
from rlcore.judge.evaluation import evaluate_agent
from rlcore.judge.random_agent import RandomAgent
from rlcore.spec import EnvSpec
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.run_config import config_of
from rlcore.system.durable import write_synced
from rlcore.types import Arrival

CHUNK_BYTES = 64 * 2**20  # rows are stored up to here; returns always


class Recording:
    """Rows of [B] arrivals and the actions that answered them, up to a size on disk."""

    def __init__(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = {}
        self.bytes = 0

    def __call__(self, arrival: Arrival, action: np.ndarray) -> None:
        """Take one moment of play."""
        if self.bytes > CHUNK_BYTES:
            return
        for key, value in (columns(arrival) | {"action": action}).items():
            self.rows.setdefault(key, []).append(np.array(value))
            self.bytes += value.nbytes

    def columns(self) -> dict[str, np.ndarray]:
        """key -> [T, B, ...], in the alignment of rlcore/types.py; `action` in the environment's form."""
        return {key: np.stack(rows) for key, rows in self.rows.items()}


def collect(run: RunDirectory) -> dict[str, Any]:
    """Play `evaluation.baseline_episodes` episodes at random and write them into dataset/, manifest.json last."""
    config, card, recording = config_of(run), run.read_card(), Recording()
    agent, episodes = RandomAgent(EnvSpec.from_json(card["spec"])), config.evaluation.baseline_episodes
    told = working("random baseline")
    result = evaluate_agent(
        agent, config, card, episodes, greedy=False, purpose="baseline", on_step=recording, on_progress=told
    )
    recorded = recording.columns()
    content, name = save(recorded), "steps-000000.safetensors"
    run.dataset.mkdir(exist_ok=True)
    write_synced(run.dataset / name, content)
    manifest = {
        "format": 1,
        "policy": "uniform random",
        "env_id": config.env.id,
        "seed": config.seed,
        "spec": card["spec"],
        "result": result,
        "rows": list(recorded["reward"].shape),
        "files": {name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
    }
    write_json(run.dataset / "manifest.json", manifest)
    tell("baseline", note_result(run, result))
    return {"dataset": str(run.dataset / "manifest.json")}
