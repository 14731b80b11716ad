"""Dreamer V3's presets and sizes are SheepRL's, leaf by leaf, and mistakes in its keys are told before any work."""

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

MADE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "dreamer_v3_fixtures.json").read_text())
SMALL = ("exp=dreamer_v3_cartpole",)


@pytest.mark.parametrize("preset", MADE["presets"])
def test_every_leaf_of_a_preset_is_theirs(preset: str) -> None:
    check_leaves(preset, MADE["presets"][preset], {})


@pytest.mark.parametrize("size", MADE["sizes"])
def test_sizes_have_as_many_parameters_as_theirs(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["exp=dreamer_v3", f"algo=dreamer_v3_{size}"])[0]
    check_sizes(config, MADE["sizes"][size], monkeypatch)


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
def test_a_mistake_is_told_in_a_sentence(typed: list[str], parts: list[str]) -> None:
    check_refusal(lambda: compose([*SMALL, *typed]), parts)


PICTURES = {
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
def test_observations_that_it_cannot_see_are_told_in_a_sentence(
    keys: tuple[list[str], list[str]], parts: list[str]
) -> None:
    images, vectors = (f"[{','.join(each)}]" for each in keys)
    config = compose([*SMALL, f"algo.cnn_keys.encoder={images}", f"algo.mlp_keys.encoder={vectors}"])[0]
    spec = EnvSpec("Some-v0", PICTURES, ActionSpec("Discrete", (), "int64", (2,), (0,)))
    check_refusal(lambda: config.algo.check_spec(spec), parts)


def test_what_a_run_does_otherwise_than_its_keys_say_is_told() -> None:
    config = compose([*SMALL, "env.frame_stack=4", "algo.learning_starts=3"])[0]
    told = [*config.algo.notices(config)]
    assert "env.frame_stack=4" in told[0] and "algo.learning_starts=3" in told[1] and len(told) == 2


def test_parts_are_registered_by_their_names_and_others_are_mistakes() -> None:
    models = compose([*SMALL])[0].model_manager.models
    assert [*models] == ["agent", "world_model", "actor", "critic", "target_critic", "moments"]
    theirs = [
        "+model_manager.models.critic.model_name=dreamer_v3_CartPole-v1_critic",
        "model_manager.models.actor=null",
    ]
    config = compose([*SMALL, *[word.removeprefix("+") for word in theirs]])[0]
    assert parts_of(config) == ["world_model", "critic", "target_critic", "moments"]
    assert model_name(config, "critic") == "dreamer_v3_CartPole-v1_critic"
    assert model_name(config, "moments") == "dreamer_v3-CartPole-v1-moments"
    with pytest.raises(UserError, match="unknown key 'model_manager.models.critics'.*did you mean 'critic'"):
        compose([*SMALL, "+model_manager.models.critics.model_name=a"])
    assert parts_of(compose(["exp=ppo", "+model_manager.models.critic.model_name=a"])[0]) == []  # of SheepRL's files
