"""Messages, keys, spaces and episodes match those of DIAMBRA's client and SheepRL's wrapper on the test engine.

The expected values are written by `tests.golden.makers.diambra`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcore.envs.suites.diambra.messages import P1, messages
from rlcore.envs.suites.registry import SUITES
from rlcore.envs.suites.suite import open_env
from tests.diambra_engine import engines
from tests.golden.diambra_cases import CASES, SEEDS, STEPS, digest, scripted
from tests.soaking import heavy

pytestmark = heavy

THEIRS = json.loads((Path(__file__).parent / "diambra.json").read_text())


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with engines(1) as (address,):
        yield address


@pytest.mark.parametrize("name", THEIRS["messages"])
def test_diambra_message_is_parsed_and_serialized_like_original(name):
    content = bytes.fromhex(THEIRS["messages"][name])
    message = getattr(messages(), name).FromString(content)
    assert message.SerializeToString(deterministic=True) == content
    assert not _unknown(message)


def _unknown(message: Any) -> bool:
    from google.protobuf.unknown_fields import UnknownFieldSet

    parts = [value for field, value in message.ListFields() if field.message_type is not None]
    # Map fields are mappings, repeated fields are sequences.
    inner = [
        part
        for value in parts
        for part in (value.values() if hasattr(value, "values") else value if hasattr(value, "__len__") else [value])
        if hasattr(part, "ListFields")
    ]
    return bool(len(UnknownFieldSet(message))) or any(map(_unknown, inner))


def test_diambra_message_fields_have_given_values():
    settings = messages().EnvSettings.FromString(bytes.fromhex(THEIRS["messages"]["EnvSettings"]))
    player = settings.episode_settings.player_settings[0]
    assert [settings.frame_shape.h, settings.frame_shape.w, settings.frame_shape.c] == [64, 32, 1]
    assert list(settings.action_spaces) == [2, 1]
    assert settings.episode_settings.continue_game == -2.5
    assert [player.outfits, player.super_art, player.fighting_style, player.speed_mode] == [5, 6, 7, 11]
    assert [player.ultimate_style.dash, player.ultimate_style.evade, player.ultimate_style.bar] == [8, 9, 10]
    init = messages().EnvInitResponse.FromString(bytes.fromhex(THEIRS["messages"]["EnvInitResponse"]))
    health = init.ram_states_categories[P1].ram_states[203]
    assert [health.type, health.min, health.max] == [3, -1, 160]
    assert dict(init.characters_info.char_homonymy_map) == {"Tiger": "Eddy"}


@pytest.mark.parametrize("name", CASES)
def test_diambra_episode_matches_original_client(name, engine, monkeypatch):
    monkeypatch.setenv("DIAMBRA_ENVS", engine)
    case, theirs = CASES[name], THEIRS["episodes"][name]
    env = open_env(SUITES["diambra"], case["id"], case)
    try:
        assert str(env.action_space) == theirs["action"]
        assert {key: _described(key, box) for key, box in env.observation_space.spaces.items()} == theirs["keys"]
        digests = []
        for seed in SEEDS:
            obs, _ = env.reset(seed=seed)
            digests.append(digest(obs, 0.0, False))
            for step in range(STEPS):
                obs, reward, terminated, _, _ = env.step(scripted(env.action_space, step))
                assert env.observation_space.contains(obs)  # observations of the original client often are not
                digests.append(digest(obs, reward, terminated))
                if terminated:
                    break
        assert digests[:3] == theirs["first"]
        assert len(digests) == theirs["arrivals"]
        assert hashlib.sha256("".join(digests).encode()).hexdigest() == theirs["digests"]
    finally:
        env.close()


def _described(key: str, box: Any) -> dict[str, Any]:
    if key == "frame":
        return {"shape": list(box.shape)}
    return {"shape": list(box.shape), "low": np.ravel(box.low).min().item(), "high": np.ravel(box.high).tolist()}
