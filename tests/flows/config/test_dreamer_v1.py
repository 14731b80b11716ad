"""Dreamer V1: presets and parameter counts against SheepRL, and mistakes in config keys."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from rlcore.errors import UserError
from rlcore.spec import ArraySpec
from tests.flows.config.dreamer_leaves import SPEC, check_leaves, check_refusal, check_sizes

FIXTURES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v1_fixtures.json").read_text())
UNUSED = {"algo.world_model.recurrent_model.dense_units": 400}  # SheepRL does not use this key
CARTPOLE = ("exp=dreamer_v1_cartpole",)


@pytest.mark.parametrize("preset", FIXTURES["presets"])
def test_dreamer_v1_preset_matches_sheeprl(preset: str) -> None:
    check_leaves(preset, FIXTURES["presets"][preset], UNUSED)


@pytest.mark.parametrize("preset", FIXTURES["sizes"])
def test_dreamer_v1_parameter_counts_match_sheeprl(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = str(preset == "dreamer_v1").lower()
    config = compose([f"exp={preset}", f"algo.world_model.use_continues={ends}"])[0]
    check_sizes(config, FIXTURES["sizes"][preset], monkeypatch)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (["algo.horizon=1"], ["algo.horizon=1", ">= 2"]),
        (["algo.actor.init_std=0"], ["algo.actor.init_std=0", "> 0"]),
        (["algo.world_model.min_std=0"], ["algo.world_model.min_std=0", "> 0"]),
        (["algo.actor.expl_amount=-0.1"], ["algo.actor.expl_amount=-0.1", ">= 0"]),
        (["algo.world_model.kl_balancing_alpha=0.8"], ["algo.world_model.kl_balancing_alpha"]),
        (["algo.critic.tau=0.02"], ["algo.critic.tau"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_dreamer_v1_config_refuses_mistakes(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*CARTPOLE, *typed]), parts)


def test_dreamer_v1_refuses_other_image_sizes() -> None:
    config = compose([*CARTPOLE, "algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]"])[0]
    obs = {"rgb": ArraySpec((32, 32, 3), "uint8", kind="image")}
    with pytest.raises(UserError, match=r"rgb has 32 × 32 pixels.*64 × 64.*env\.screen_size"):
        config.algo.check_spec(dataclasses.replace(SPEC, obs=obs))
