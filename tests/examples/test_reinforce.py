"""The algorithm in examples/ passes the conformance suite and is short."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.errors import UserError
from rlcore.train.trainer import Trainer
from tests import processes
from tests.contract.checks import conformance_checks

EXAMPLE = processes.ROOT / "examples/reinforce"
SMALL = [
    "exp=reinforce",
    "algo.rollout_steps=24",
    "algo.total_steps=1000",
    "env.num_envs=3",
    "env.max_episode_steps=12",
]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the example; no plugin is named yet."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", f"file://{folder}/conf")
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield folder
    ALGORITHMS.pop("reinforce", None)
    sys.modules.pop("reinforce", None)


@pytest.mark.parametrize("check", conformance_checks())
def test_reinforce_example_passes_conformance(check: Callable[[RunConfig], None], outside: Path) -> None:
    check(compose([*SMALL, "plugins=[reinforce]"])[0])


def test_reinforce_example_trains_without_budget(outside: Path) -> None:
    """The warm-up of compilation compares the budget with the policy steps."""
    stop = "stop=[{upper_bound:{metric:updates,value:2}}]"
    small = [word for word in SMALL if not word.startswith("algo.total_steps")]
    config = compose([*small, "plugins=[reinforce]", "algo.total_steps=null", stop])[0]
    one = Trainer(config)
    assert one.policy_steps < one.plan.total_steps and one.run().reason.startswith("upper_bound: updates = 2")


def test_reinforce_example_is_short() -> None:
    assert len((EXAMPLE / "reinforce.py").read_text().splitlines()) <= 120


def test_compose_refuses_plugin_named_only_in_file(outside: Path) -> None:
    preset = outside / "conf/exp/sly.yaml"
    preset.write_text("# @package _global_\ndefaults:\n  - ppo\n  - _self_\nplugins: [reinforce]\n")
    with pytest.raises(UserError, match=r"plugins=\[reinforce\]: .*a plugin is imported only if you name it"):
        compose(["exp=sly"])
    assert "reinforce" not in sys.modules
