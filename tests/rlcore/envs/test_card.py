"""The environment card: its contents and its cache key."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import gymnasium
import pytest

from rlcore.config.groups import EnvConfig
from rlcore.envs.card import card_key, card_once, environment_card, readable_card, source_files, time_limit
from rlcore.envs.make import EnvSettings, make
from rlcore.errors import EnvironmentFault
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.evaluation.random_agent import RandomAgent
from rlcore.run_config import build_config
from rlcore.spec import EnvSpec
from rlcore.train.run_trainer import RunTrainer
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.runs import prepare, values

MODULE = """
import gymnasium
from worked_on.base import Base


class Own(Base):
    pass


gymnasium.register("Own-v0", "worked_on.own:Own")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An editable package with an environment."""
    folder = tmp_path / "worked_on"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "own.py").write_text(MODULE)
    (folder / "base.py").write_text("import gymnasium\n\n\nclass Base(gymnasium.Env):\n    pass\n")
    (folder / "helper.py").write_text("gravity = 9.81\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    importlib.import_module("worked_on.own")
    yield folder
    gymnasium.registry.pop("Own-v0")
    for name in [name for name in sys.modules if name.partition(".")[0] == "worked_on"]:
        del sys.modules[name]


def key(env_id: str, **settings: object) -> str | None:
    return card_key(EnvSettings(env_id, **settings))


def test_card_key_is_deterministic() -> None:
    assert key("CartPole-v1") == key("CartPole-v1")


def test_card_key_depends_on_settings_and_id() -> None:
    keys = [key("CartPole-v1"), key("CartPole-v1", action_repeat=2), key("Acrobot-v1")]
    keys.append(key("CartPole-v1", wrapper={"sutton_barto_reward": True}))
    assert len(set(keys)) == len(keys)
    assert None not in keys


@pytest.mark.parametrize("file", ["own.py", "base.py", "helper.py"])
def test_card_key_changes_with_editable_package(package: Path, file: str) -> None:
    before = key("Own-v0")
    (package / file).write_text((package / file).read_text() + "# changed\n")
    assert key("Own-v0") != before


def test_source_files_include_whole_installed_package() -> None:
    names = [path.name for path in source_files(EnvSettings("CartPole-v1")) or []]
    assert {"core.py", "cartpole.py", "registration.py"} <= set(names)


def test_card_key_covers_modules_beside_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "physics_of_mine.py").write_text("gravity = 9.81\n")
    lines = ["import gymnasium", "import physics_of_mine", "class Own(gymnasium.Env): pass"]
    (tmp_path / "env_of_mine.py").write_text("\n".join([*lines, 'gymnasium.register("Mine-v0", "env_of_mine:Own")']))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    importlib.import_module("env_of_mine")
    try:
        before = key("Mine-v0")
        (tmp_path / "physics_of_mine.py").write_text("gravity = 1.62\n")
        assert key("Mine-v0") != before
    finally:
        gymnasium.registry.pop("Mine-v0")


def test_card_key_is_none_without_source_file() -> None:
    env = type("Anonymous", (gymnasium.Env,), {"__module__": "nowhere"})
    gymnasium.register("Anonymous-v0", env)
    try:
        assert key("Anonymous-v0") is None
    finally:
        gymnasium.registry.pop("Anonymous-v0")


def test_card_once_measures_again_after_change_of_sources(package: Path) -> None:
    measured = [{"tier": "snapshot", "findings": []}, {"tier": "replay", "findings": []}]
    settings, left = EnvSettings("Own-v0"), iter(measured)
    first = card_once(settings, lambda: next(left))
    first["findings"].append("changed by the caller")
    assert card_once(settings, lambda: next(left)) == measured[0] == {"tier": "snapshot", "findings": []}
    (package / "own.py").write_text(MODULE + "# changed\n")
    assert card_once(settings, lambda: next(left)) == measured[1]


def test_card_once_measures_each_time_without_source_file() -> None:
    gymnasium.register("Anonymous-v0", type("Anonymous", (gymnasium.Env,), {"__module__": "nowhere"}))
    try:
        assert [card_once(EnvSettings("Anonymous-v0"), lambda tier=tier: {"tier": tier}) for tier in "ab"] == [
            {"tier": "a"},
            {"tier": "b"},
        ]
    finally:
        gymnasium.registry.pop("Anonymous-v0")


def test_environment_card_describes_pendulum():
    card = environment_card(EnvSettings("Pendulum-v1"))
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert (card["id"], card["tier"], card["fresh_instance"], card["deterministic"]) == (
        "Pendulum-v1",
        "snapshot",
        False,
        True,
    )
    assert (card["max_episode_steps"], card["time_limit_checked"]) == (200, "confirmed: an episode was truncated there")
    assert EnvSpec.from_json(card["spec"]).obs["state"].shape == (3,)
    assert card["packages"]["gymnasium"] == gymnasium.__version__
    low, high = card["reward_seen"]
    assert -16.3 < low < high <= 0
    text = readable_card(card)
    assert "# Pendulum-v1" in text and "**snapshot**" in text and "200 actions" in text


def test_environment_card_explains_missing_snapshot():
    card = environment_card(EnvSettings("Hopper-v5"))
    assert set(card["packages"]) == {"gymnasium", "numpy", "mujoco"}
    assert "cannot be saved" in readable_card(card)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 500),
        ({"max_episode_steps": 30}, 30),
        ({"action_repeat": 3}, 167),
        ({"action_repeat": 3, "max_episode_steps": 200}, 167),
    ],
)
def test_time_limit_is_counted_in_actions(options, limit):
    env = make(EnvSettings("CartPole-v1", **options))
    assert time_limit(env) == limit
    assert time_limit(make(EnvSettings("Blackjack-v1"))) is None


def test_environment_card_refuses_faulty_environment():
    for fault, message in (("nan", "key 'state' is nan"), ("raise", "RuntimeError: the engine said no")):
        with pytest.raises(EnvironmentFault, match=message):
            environment_card(EnvSettings("Probe/Counter-v0", wrapper={"lengths": [5], "fault": fault}))


def test_environment_card_refuses_late_infinite_reward():
    """The fault is after the steps of the vector test, in the episodes that measure the tier."""
    late = {"lengths": [150], "fault": "reward", "at": 120}
    with pytest.raises(
        EnvironmentFault, match="^this environment fails under random actions: .*step 120: reward is inf"
    ):
        environment_card(EnvSettings("Probe/Counter-v0", wrapper=late))


def test_environment_card_respects_action_mask() -> None:
    card = environment_card(EnvSettings("Probe/Masked-v0"))
    assert (card["tier"], card["tested"]["longest_episode"]) == ("snapshot", 25)
    config = dataclasses.replace(build_config(values("CartPole-v1", 64)), env=EnvConfig("Probe/Masked-v0"))
    result = evaluate_agent(RandomAgent(EnvSpec.from_json(card["spec"])), config, card, 6, greedy=False)
    assert result["mean_length"] == 25.0


def test_restart_on_exception_allows_flaky_environment(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="boom"):
        environment_card(EnvSettings("Probe/Flaky-v0"))
    answered = {"attempts": 10_000, "window": 1000.0, "wait": 0.0}
    keys = {f"env__restart_on_exception__{key}": value for key, value in answered.items()}
    run = prepare(tmp_path / "run", "Probe/Flaky-v0", evaluation__episodes=2, **keys)
    card = json.loads((run.path / "env_card.json").read_text())
    assert card["tier"] == "boundary" and any("boom" in found for found in card["findings"])
    session = RunTrainer(run)
    with run.writing():
        boundary = session.advance(lambda event: None)
    session.close()
    assert boundary.policy_steps > 29


def test_readable_card_lists_findings_as_notes() -> None:
    card = environment_card(EnvSettings("Probe/Counter-v0"))
    assert card["tier"] == "snapshot" and len(card["findings"]) == 2
    page = readable_card(card)
    assert all(f"\n- Note: {finding}\n" in page for finding in card["findings"])
    assert "Note" not in readable_card(
        {key: value for key, value in card.items() if key != "findings"}
    )  # a card of an earlier version
