"""Dreamer V2's presets are SheepRL's, leaf by leaf, and mistakes in its keys are told before any work."""

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

MADE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v2_fixtures.json").read_text())
WRAPPER: dict[str, Any] = dict.fromkeys(("env.wrapper.screen_size", "env.wrapper.seed"))  # of their wrapper of Crafter
SMALL = ("exp=dreamer_v2_cartpole",)


@pytest.mark.parametrize("preset", MADE["presets"])
def test_every_leaf_of_a_preset_is_theirs(preset: str) -> None:
    check_leaves(preset, MADE["presets"][preset], WRAPPER if preset.endswith("crafter") else {})


@pytest.mark.parametrize("preset", MADE["sizes"])
def test_presets_have_as_many_parameters_as_theirs(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([f"exp={preset}", "algo.mlp_keys.encoder=[]"])[0]  # counted of pictures alone
    check_sizes(config, MADE["sizes"][preset], monkeypatch)


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
def test_a_mistake_is_told_in_a_sentence(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*SMALL, *typed]), parts)


def test_pictures_of_another_size_are_refused() -> None:
    config = compose([*SMALL, "algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]"])[0]
    spec = EnvSpec("Some-v0", {"rgb": ArraySpec((128, 128, 3), "uint8", kind="image")}, SPEC.action)
    with pytest.raises(UserError, match=r"rgb has 128 × 128 pixels.*64 × 64.*env.screen_size to 64"):
        config.algo.check_spec(spec)


@pytest.mark.parametrize(("kind", "takes"), [("trunc_normal", "auto, discrete"), ("tanh_normal", "auto, discrete")])
def test_a_distribution_that_an_action_space_cannot_have_is_refused(kind: str, takes: str) -> None:
    config = compose([*SMALL, f"distribution.type={kind}"])[0]
    spec = EnvSpec("Some-v0", {"state": ArraySpec((4,), "float32")}, SPEC.action)
    told = rf"distribution.type={kind}: not available for a Discrete action; must be one of {takes}"
    with pytest.raises(UserError, match=told):
        Agent(config.algo, spec, kind, torch.Generator())


def test_decay_of_each_step_is_that_of_adamw_by_the_rate_of_each_group() -> None:
    groups = {"bias": {"weight_decay": 0.0}, "output": {"lr": 1e-2}}
    found = OptimizerConfig(lr=1e-3, eps=1e-5, weight_decay=1e-6, groups=groups).decayed_each_step()
    assert (found.name, found.weight_decay, found.eps) == ("adamw", pytest.approx(1e-3), 1e-5)
    assert found.of_group("bias").weight_decay == 0
    assert found.of_group("output").weight_decay == pytest.approx(1e-4)
    other = OptimizerConfig(name="sgd", eps=None, betas=None, weight_decay=1e-6)
    assert other.decayed_each_step() is other
