"""Mistakes in Dreamer configs: one sentence, exit code 2, and no files."""

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
        (
            ["algo.actor.cls=masked_actor"],
            ["algo.actor.cls=masked_actor", "CartPole-v1 has no action masks", "to actor"],
        ),
        (["buffer.type=episodic"], ["buffer.type=episodic", "sequential, episode"]),
        (
            ["algo.world_model.recurrent_model.recurrent_state_size=2000000"],
            ["recurrent_state_size=2000000: this run would need", "the largest", "that fits is"],
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_train_refuses_dreamer_v3_mistakes(
    typed: list[str], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["exp=dreamer_v3_cartpole", *typed], parts, tmp_path, capsys)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (
            ["exp=dreamer_v1_cartpole", *PIXELS, "env.screen_size=32"],
            ["algo.cnn_keys.encoder", "32 × 32", "take 64 × 64 pixels", "screen_size to 64"],
        ),
        (["exp=dreamer_v1_cartpole", "algo.actor.expl_amount=-0.1"], ["algo.actor.expl_amount=-0.1", ">= 0"]),
        (
            ["exp=dreamer_v2_cartpole", *PIXELS, "env.screen_size=128"],
            ["algo.cnn_keys.encoder", "128 × 128", "take 64 × 64 pixels", "screen_size to 64"],
        ),
    ],
    ids=["v1 pictures", "v1 noise", "v2 pictures"],
)
def test_train_refuses_dreamer_v1_and_v2_mistakes(
    typed: list[str], parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(typed, parts, tmp_path, capsys)


def assert_refused(typed: list[str], parts: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", f"run_dir={folder / 'run'}", *typed]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and all(part in lines[0] for part in parts), lines
    assert not [*folder.iterdir()]
