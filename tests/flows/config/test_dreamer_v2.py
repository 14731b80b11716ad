"""Dreamer V2: presets and parameter counts against SheepRL, and mistakes in config keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.config.compose import compose
from rlcore.algorithms.dreamer.dreamer_v2.learner import Agent
from rlcore.errors import UserError
from rlcore.optim.optimizer_keys import OptimizerConfig
from rlcore.spec import ArraySpec, EnvSpec
from tests.flows.config.dreamer_leaves import SPEC, check_leaves, check_refusal, check_sizes

FIXTURES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v2_fixtures.json").read_text())
WRAPPER: dict[str, Any] = dict.fromkeys(("env.wrapper.screen_size", "env.wrapper.seed"))  # only in SheepRL's Crafter
CARTPOLE = ("exp=dreamer_v2_cartpole",)


@pytest.mark.parametrize("preset", FIXTURES["presets"])
def test_dreamer_v2_preset_matches_sheeprl(preset: str) -> None:
    check_leaves(preset, FIXTURES["presets"][preset], WRAPPER if preset.endswith("crafter") else {})


@pytest.mark.parametrize("preset", FIXTURES["sizes"])
def test_dreamer_v2_parameter_counts_match_sheeprl(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([f"exp={preset}", "algo.mlp_keys.encoder=[]"])[0]  # the counts are for image observations only
    check_sizes(config, FIXTURES["sizes"][preset], monkeypatch)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (["algo.mlp_keys.decoder=[speed]"], ["algo.mlp_keys.decoder=[speed]", "speed is not encoded", "([state])"]),
        (["algo.mlp_keys.decoder=[]"], ["algo.mlp_keys.decoder=[]", "name at least one of state"]),
        (["algo.horizon=1"], ["algo.horizon=1", ">= 2"]),
        (["algo.world_model.kl_balancing_alpha=1.5"], ["algo.world_model.kl_balancing_alpha=1.5", "<= 1"]),
        (["buffer.size=16"], ["algo.per_rank_sequence_length=16", "16 rows", "buffer.size to at least 17"]),
        (["algo.actor.objective_mix=-1"], ["algo.actor.objective_mix=-1", ">= 0"]),
        (["algo.actor.expl_amount=-1"], ["algo.actor.expl_amount=-1", ">= 0"]),
        (["algo.world_model.kl_dynamic=0.5"], ["'algo.world_model.kl_dynamic'", "0.5"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_dreamer_v2_config_refuses_mistakes(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*CARTPOLE, *typed]), parts)


def test_dreamer_v2_refuses_other_image_sizes() -> None:
    config = compose([*CARTPOLE, "algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]"])[0]
    spec = EnvSpec("Some-v0", {"rgb": ArraySpec((128, 128, 3), "uint8", kind="image")}, SPEC.action)
    with pytest.raises(UserError, match=r"rgb has 128 × 128 pixels.*64 × 64.*env.screen_size to 64"):
        config.algo.check_spec(spec)


@pytest.mark.parametrize(("kind", "takes"), [("trunc_normal", "auto, discrete"), ("tanh_normal", "auto, discrete")])
def test_dreamer_v2_agent_refuses_unsuitable_distribution(kind: str, takes: str) -> None:
    config = compose([*CARTPOLE, f"distribution.type={kind}"])[0]
    spec = EnvSpec("Some-v0", {"state": ArraySpec((4,), "float32")}, SPEC.action)
    message = rf"distribution.type={kind}: not available for a Discrete action; must be one of {takes}"
    with pytest.raises(UserError, match=message):
        Agent(config.algo, spec, kind, torch.Generator())


def test_decayed_each_step_converts_weight_decay_to_adamw() -> None:
    groups = {"bias": {"weight_decay": 0.0}, "output": {"lr": 1e-2}}
    converted = OptimizerConfig(lr=1e-3, eps=1e-5, weight_decay=1e-6, groups=groups).decayed_each_step()
    assert (converted.name, converted.weight_decay, converted.eps) == ("adamw", pytest.approx(1e-3), 1e-5)
    assert converted.of_group("bias").weight_decay == 0
    assert converted.of_group("output").weight_decay == pytest.approx(1e-4)
    other = OptimizerConfig(name="sgd", eps=None, betas=None, weight_decay=1e-6)
    assert other.decayed_each_step() is other
