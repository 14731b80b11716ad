"""Mistakes of users of a Dreamer: one sentence, exit code 2, and nothing made."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import main as cli

NO_KEYS = ["algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[]"]
PIXELS = ["algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[rgb]"]


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (NO_KEYS, ["algo.mlp_keys.encoder=[]", "name at least one observation key"]),
        (["algo.mlp_keys.decoder=[rgb]"], ["algo.mlp_keys.decoder=[rgb]", "rgb is not encoded"]),
        (
            [*PIXELS, "env.screen_size=48"],
            ["algo.cnn_keys.encoder", "48 × 48", "power of two", "screen_size to 64"],
        ),
        (["algo.per_rank_sequence_length=1"], ["algo.per_rank_sequence_length=1", ">= 2"]),
        (["env.num_envs=4", "buffer.size=64"], ["algo.per_rank_sequence_length=16", "16 rows", "at least 68"]),
        (["algo.replay_ratio=-0.5"], ["algo.replay_ratio=-0.5", "> 0"]),
        (["algo.train_every=0"], ["algo.train_every=0", ">= 1"]),
        (["algo.actor.objective_mix=1.1"], ["algo.actor.objective_mix=1.1", "<= 1"]),
        (["algo.actor.objective_mix=-0.1"], ["algo.actor.objective_mix=-0.1", ">= 0"]),
        (["algo.unimix=1.1"], ["algo.unimix=1.1", "<= 1"]),
        (["algo.actor.cls=masked_actor"], ["algo.actor.cls=masked_actor", "CartPole-v1 gives no masks", "to actor"]),
        (["buffer.type=episodic"], ["buffer.type=episodic", "sequential, episode"]),
        (
            ["algo.world_model.recurrent_model.recurrent_state_size=2000000"],
            ["recurrent_state_size=2000000: this run would need", "the largest", "that fits is"],
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_one_sentence_and_nothing_made(
    typed: list[str], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "exp=dreamer_v3_cartpole", f"run_dir={tmp_path / 'run'}", *typed]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1 and all(part in told[0] for part in parts), told
    assert not [*tmp_path.iterdir()]
