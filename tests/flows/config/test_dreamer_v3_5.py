"""Presets, sizes and mistakes of Dreamer V3.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.algorithms import ALGORITHMS
from rlcore.config.schema import arguments
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from tests.flows.config.dreamer_leaves import check_refusal, check_sizes

GOLDEN = Path(__file__).parents[2] / "golden"
SIZES: dict[str, dict[str, int]] = json.loads((GOLDEN / "dreamer_v3_5_fixtures.json").read_text())["sizes"]
PAGE = Path(__file__).parents[3] / "docs" / "algorithms" / "dreamer_v3_5.md"


@pytest.mark.parametrize("size", SIZES)
def test_dreamer_v3_5_parameter_counts_match_sheeprl(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["exp=dreamer_v3_5", f"algo=dreamer_v3_5_{size}"])[0]
    check_sizes(config, SIZES[size], monkeypatch)
    assert f"| {sum(SIZES[size].values()):,} |" in PAGE.read_text()


def test_dreamer_v3_5_is_size_200m() -> None:
    trees = [compose(["exp=dreamer_v3_5", *words])[1]["algo"] for words in ([], ["algo=dreamer_v3_5_200M"])]
    assert trees[0] == trees[1]


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (["algo.world_model.recurrent_model.blocks=7"], ["recurrent_model.blocks=7", "must divide 64"]),
        (
            ["algo.cnn_keys.encoder=[rgb]", "algo.world_model.observation_model.block_space=3"],
            ["observation_model.block_space=3", "must divide 64"],
        ),
        (
            ["algo.cnn_keys.encoder=[rgb]", "algo.cnn_channels_multiplier=3"],
            ["observation_model.block_space=8", "must divide 12", "cnn_channels_multiplier"],
        ),
        (["algo.cnn_kernel_size=4"], ["encoder.cnn_kernel_size=4", "must be odd"]),
        (["algo.cnn_stages=[]"], ["encoder.cnn_stages=[]", "at least one stage"]),
        (["algo.loss_scales.values=2"], ["algo.loss_scales.values", "known keys: observation, reward"]),
        (["algo.loss_scales.value=-2"], ["algo.loss_scales.value=-2", ">= 0"]),
        (["algo.loss_scales.value=high"], ["algo.loss_scales.value=high", "must be a number"]),
        (["algo.replay_context=2"], ["algo.replay_context=2", "one of 0, 1"]),
        (["algo.world_model.representation_model.layers=2"], ["representation_model.layers=2", "one of 1"]),
        (["algo.optimizer.agc_pmin=1"], ["algo.optimizer.agc_pmin=1", "one of 0.001"]),
        (["algo.actor.min_std=2"], ["algo.actor.min_std=2", "not be above 1"]),
        (["buffer.size=17"], ["algo.per_rank_sequence_length=16", "17 rows", "buffer.size to at least 18"]),
        (["distribution.type=tanh_normal"], ["distribution.type=tanh_normal", "set it to auto"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_dreamer_v3_5_config_refuses_mistakes(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose(["exp=dreamer_v3_5_cartpole", *typed]), parts)


@pytest.mark.parametrize(("stages", "side", "allowed"), [(4, 64, True), (4, 96, True), (4, 72, False), (3, 72, True)])
def test_dreamer_v3_5_refuses_images_that_cannot_be_halved(stages: int, side: int, allowed: bool) -> None:
    obs = {"rgb": ArraySpec((side, side, 3), "uint8", kind="image")}
    spec = EnvSpec("Some-v0", obs, ActionSpec("Discrete", (), "int64", (2,), (0,)))
    typed = ["algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[rgb]", f"algo.cnn_stages={[2] * stages}"]
    algo: Any = compose(["exp=dreamer_v3_5_cartpole", *typed, "algo.cnn_channels_multiplier=4"])[0].algo
    if allowed:
        algo.check_spec(spec)
        return
    with pytest.raises(UserError, match=r"rgb has 72 × 72 pixels, .* multiple of 16 .*env.screen_size to 64"):
        algo.check_spec(spec)


def test_dreamer_v3_5_without_adaptive_clipping_has_no_clipping() -> None:
    algo: Any = compose(["exp=dreamer_v3_5_cartpole", "algo.optimizer.agc=0"])[0].algo
    assert algo.update_rule(algo.optimizer).clip_norm == "global" and algo.optimizer.agc == 0


def test_dreamer_v3_5_page_names_every_key() -> None:
    """The page names each key that Dreamer V3 does not have."""
    own, other = (
        {argument.key.rpartition(".")[2] for argument in arguments(ALGORITHMS[name].Config)}
        for name in ("dreamer_v3_5", "dreamer_v3")
    )
    text = PAGE.read_text()
    assert not [key for key in own - other if f"{key}`" not in text]
