"""Stage collect: write a dataset of episodes of the uniformly random policy, the baseline for all results."""

from __future__ import annotations

import hashlib
from typing import Any

from safetensors.numpy import save

from flows.runs.listeners import emit, episode_reporter
from flows.runs.milestones import has_baseline, note_result
from rlcore.evaluation.collection import PlayedRows
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.evaluation.sight import draw_images
from rlcore.spec import EnvSpec
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.system.durable import write_synced

CHUNK_BYTES = 64 * 2**20  # maximum size of the stored rows; all returns are stored


def collect(run: RunDirectory) -> dict[str, Any]:
    """Play `evaluation.baseline_episodes` episodes with random actions and write the folder dataset/.

    manifest.json is written last and shows that the dataset is complete. If there are image observations,
    media/inputs.png shows the inputs of the network.
    """
    config, card, recording = config_of(run), run.read_card(), PlayedRows(CHUNK_BYTES)
    agent, episodes = RandomAgent(EnvSpec.from_json(card["spec"])), config.baseline_episodes
    report = episode_reporter("random baseline")
    result = evaluate_agent(
        agent, config, card, episodes, greedy=False, purpose="baseline", on_step=recording, on_progress=report
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
    if images := list(getattr(getattr(config.algo, "cnn_keys", None), "encoder", ())):
        run.media.mkdir(exist_ok=True)
        run.inputs.write_bytes(draw_images(recorded, agent.spec, images))
    write_json(run.dataset / "manifest.json", manifest)
    emit("baseline", result if has_baseline(run) else note_result(run, result))
    return {"dataset": str(run.dataset / "manifest.json")}
