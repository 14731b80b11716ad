"""Dreamer V3: presets and parameter counts against SheepRL, and mistakes in config keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.registry.models import model_name, parts_of
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from tests.flows.config.dreamer_leaves import check_leaves, check_refusal, check_sizes

FIXTURES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v3_fixtures.json").read_text())
CARTPOLE = ("exp=dreamer_v3_cartpole",)


@pytest.mark.parametrize("preset", FIXTURES["presets"])
def test_dreamer_v3_preset_matches_sheeprl(preset: str) -> None:
    check_leaves(preset, FIXTURES["presets"][preset], {})


@pytest.mark.parametrize("size", FIXTURES["sizes"])
def test_dreamer_v3_parameter_counts_match_sheeprl(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["exp=dreamer_v3", f"algo=dreamer_v3_{size}"])[0]
    check_sizes(config, FIXTURES["sizes"][size], monkeypatch)


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (["algo.mlp_keys.decoder=[speed]"], ["algo.mlp_keys.decoder=[speed]", "speed is not encoded", "([state])"]),
        (["algo.mlp_keys.decoder=[]"], ["algo.mlp_keys.decoder=[]", "name at least one of state"]),
        (["algo.per_rank_sequence_length=1"], ["algo.per_rank_sequence_length=1", ">= 2"]),
        (["buffer.size=16"], ["algo.per_rank_sequence_length=16", "16 rows", "buffer.size to at least 17"]),
        (["algo.replay_ratio=-1"], ["algo.replay_ratio=-1", "> 0"]),
        (["algo.actor.objective_mix=1.5"], ["algo.actor.objective_mix=1.5", "<= 1"]),
        (["algo.unimix=-0.1"], ["algo.unimix=-0.1", ">= 0"]),
        (["algo.actor.min_std=2"], ["algo.actor.min_std=2", "not be above 1"]),
        (["algo.actor.moments.percentile.low=0.99"], ["algo.actor.moments.percentile.low=0.99", "not be above 0.95"]),
        (["algo.learning_starts=6000"], ["algo.learning_starts=6000", "nothing would be learned"]),
        (["distribution.type=tanh_normal"], ["distribution.type=tanh_normal", "set it to auto"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_dreamer_v3_config_refuses_mistakes(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*CARTPOLE, *typed]), parts)


OBSERVATIONS = {
    "square": ArraySpec((64, 64, 3), "uint8", kind="image"),
    "odd": ArraySpec((84, 84, 3), "uint8", kind="image"),
    "tiny": ArraySpec((4, 4, 3), "uint8", kind="image"),
    "state": ArraySpec((4,), "float32"),
}


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ((["odd"], []), ["algo.cnn_keys.encoder", "odd has 84 × 84", "power of two", "env.screen_size"]),
        ((["tiny"], []), ["algo.cnn_keys.encoder", "at least 8 pixels"]),
        (([], []), ["algo.mlp_keys.encoder=[]", "name at least one observation key"]),
        ((["square"], ["other"]), ["has no key 'other'"]),
    ],
    ids=["no power of two", "too small", "no key", "a key that is not there"],
)
def test_dreamer_v3_refuses_unsupported_observations(keys: tuple[list[str], list[str]], parts: list[str]) -> None:
    images, vectors = (f"[{','.join(each)}]" for each in keys)
    config = compose([*CARTPOLE, f"algo.cnn_keys.encoder={images}", f"algo.mlp_keys.encoder={vectors}"])[0]
    spec = EnvSpec("Some-v0", OBSERVATIONS, ActionSpec("Discrete", (), "int64", (2,), (0,)))
    check_refusal(lambda: config.algo.check_spec(spec), parts)


def test_dreamer_v3_notices_name_keys_with_other_effect() -> None:
    config = compose([*CARTPOLE, "env.frame_stack=4", "algo.learning_starts=3"])[0]
    sentences = [*config.algo.notices(config)]
    assert "env.frame_stack=4" in sentences[0] and "algo.learning_starts=3" in sentences[1] and len(sentences) == 2


def test_model_manager_models_accept_only_dreamer_parts() -> None:
    models = compose([*CARTPOLE])[0].model_manager.models
    assert [*models] == ["agent", "world_model", "actor", "critic", "target_critic", "moments"]
    overrides = [
        "+model_manager.models.critic.model_name=dreamer_v3_CartPole-v1_critic",
        "model_manager.models.actor=null",
    ]
    config = compose([*CARTPOLE, *[word.removeprefix("+") for word in overrides]])[0]
    assert parts_of(config) == ["world_model", "critic", "target_critic", "moments"]
    assert model_name(config, "critic") == "dreamer_v3_CartPole-v1_critic"
    assert model_name(config, "moments") == "dreamer_v3-CartPole-v1-moments"
    with pytest.raises(UserError, match="unknown key 'model_manager.models.critics'.*did you mean 'critic'"):
        compose([*CARTPOLE, "+model_manager.models.critics.model_name=a"])
    # PPO accepts the key, because SheepRL's files contain it.
    assert parts_of(compose(["exp=ppo", "+model_manager.models.critic.model_name=a"])[0]) == []
