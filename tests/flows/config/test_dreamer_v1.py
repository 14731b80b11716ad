"""Dreamer V1's presets and sizes are SheepRL's, leaf by leaf, and mistakes in its keys are told before any work."""

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

MADE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v1_fixtures.json").read_text())
UNREAD = {"algo.world_model.recurrent_model.dense_units": 400}  # in theirs the layer has other units too
SMALL = ("exp=dreamer_v1_cartpole",)


@pytest.mark.parametrize("preset", MADE["presets"])
def test_every_leaf_of_a_preset_is_theirs(preset: str) -> None:
    check_leaves(preset, MADE["presets"][preset], UNREAD)


@pytest.mark.parametrize("preset", MADE["sizes"])
def test_presets_have_as_many_parameters_as_theirs(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = str(preset == "dreamer_v1").lower()
    config = compose([f"exp={preset}", f"algo.world_model.use_continues={ends}"])[0]
    check_sizes(config, MADE["sizes"][preset], monkeypatch)


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
def test_a_mistake_is_told_in_a_sentence(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*SMALL, *typed]), parts)


def test_images_of_another_size_than_its_stages_take_are_told_in_a_sentence() -> None:
    config = compose([*SMALL, "algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]"])[0]
    obs = {"rgb": ArraySpec((32, 32, 3), "uint8", kind="image")}
    with pytest.raises(UserError, match=r"rgb has 32 × 32 pixels.*64 × 64.*env\.screen_size"):
        config.algo.check_spec(dataclasses.replace(SPEC, obs=obs))
