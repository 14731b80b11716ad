"""Every Dreamer preset trains up to a checkpoint, with small networks and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.config.yaml_files import presets
from rlcore.train.run_trainer import RunTrainer
from tests.runs import SMALL_DREAMER, SMALL_DREAMER_V1, SMALL_DREAMER_V2, SMALL_DREAMER_V3_5, lay_out
from tests.soaking import heavy

pytestmark = heavy

SIZES = {
    "dreamer_v1": SMALL_DREAMER_V1,
    "dreamer_v2": SMALL_DREAMER_V2,
    "dreamer_v3": SMALL_DREAMER,
    "dreamer_v3_5": SMALL_DREAMER_V3_5,
}
CONTINUOUS = ("pendulum", "point_mass", "dmc")
ROWS = 8  # per environment: one and a half episodes of the dummy environment


def laid_over(tree: dict[str, Any], smaller: dict[str, Any]) -> dict[str, Any]:
    """The tree with replaced leaves."""
    return tree | {
        key: laid_over(tree[key], value) if isinstance(value, dict) else value for key, value in smaller.items()
    }


def reduced(preset: str) -> dict[str, Any]:
    """The config of the preset, made small and with a dummy environment; keys of buffer and losses are unchanged."""
    config, tree = compose([f"exp={preset}"])
    width, algo = min(config.width, 2), config.algo
    images, vectors = (["rgb"] if algo.cnn_keys.encoder else []), (["state"] if algo.mlp_keys.encoder else [])
    channels = {"cnn_channels_multiplier": 1}
    small = laid_over(tree["algo"], SIZES[algo.name]) | {
        "compile": False,
        "total_steps": ROWS * width,
        "learning_starts": 0,
        "per_rank_pretrain_steps": 1,
        "per_rank_batch_size": 2,
        "per_rank_sequence_length": 3,
        "replay_ratio": 0.5 / width,
        "horizon": 3,
        "cnn_keys": {"encoder": images, "decoder": None},
        "mlp_keys": {"encoder": vectors, "decoder": None},
    }
    small = laid_over(small, {"world_model": {"encoder": channels, "observation_model": channels}})
    kind = "continuous_dummy" if any(name in preset for name in CONTINUOUS) else "discrete_dummy"
    env = {"id": kind, "num_envs": width, "sync_env": True, "wrapper": {"n_steps": 4}, "capture_video": False}
    return tree | {"algo": small, "env": tree["env"] | env, "buffer": tree["buffer"] | {"size": 16 * width}}


@pytest.mark.parametrize("preset", [name for name in presets() if name.startswith("dreamer_")])
def test_dreamer_preset_trains_and_saves_checkpoint(preset: str, tmp_path: Path) -> None:
    session = RunTrainer(lay_out(tmp_path / "run", reduced(preset)))
    with session.run.writing():
        while not (boundary := session.advance(lambda facts: None)).done:
            pass
        session.save()
    session.close()
    # Half a gradient step is due for every row except the first two, and one pretraining step.
    assert boundary.reason == "finished" and session.learner.updates == 1 + (ROWS - 2) // 2
    assert (session.run.checkpoints / str(ROWS * session.config.width) / "manifest.json").exists()
