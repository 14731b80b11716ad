"""The environment in examples/: what Gymnasium asks of one, exact, and worth training on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
from gymnasium.utils.env_checker import check_env

from flows.config.compose import compose
from rlcore import plugins
from rlcore.train.trainer import Trainer
from tests import processes

EXAMPLE = processes.ROOT / "examples/corridor"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory of who tries it."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "conf")
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield
    sys.modules.pop("corridor", None)


def test_it_is_what_gymnasium_asks_of_an_environment() -> None:
    sys.path.append(str(EXAMPLE))
    env = importlib.import_module("corridor").Corridor(length=5, render_mode="rgb_array")
    check_env(env, skip_render_check=True)  # which wants an id
    assert env.render().shape == (32, 160, 3)


def test_ppo_learns_to_walk_to_its_end() -> None:
    training = Trainer(compose(["exp=ppo_corridor", "plugins=[corridor]", "algo.total_steps=4096"])[0])
    assert training.card["tier"] == "snapshot"
    for _ in training:
        pass
    # Seven steps away at most, of which each costs 0.01; the random policy brings about 0.3.
    assert training.evaluate(episodes=20)["mean"] > 0.93
