"""The algorithm in examples/ is one from outside: nothing here knows it, and everything works with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flows.cli import main as cli
from flows.config.compose import compose
from rlcore import conformance, plugins
from rlcore.algorithms import ALGORITHMS, register
from rlcore.config.groups import RunConfig
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from tests import processes
from tests.stores import furnish

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
    """A user's folder with the example in it, in which nothing is named yet."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", f"file://{folder}/conf")
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield folder
    ALGORITHMS.pop("reinforce", None)
    sys.modules.pop("reinforce", None)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_what_every_algorithm_promises(check: Callable[[RunConfig], None], outside: Path) -> None:
    check(compose([*SMALL, "plugins=[reinforce]"])[0])


def test_it_is_short() -> None:
    assert len((EXAMPLE / "reinforce.py").read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")
def test_from_a_command_to_a_served_model(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    furnish(tmp_path)
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    quick = ["algo.total_steps=30000", "evaluation.final_episodes=20", "env.capture_video=false", "run_dir=run"]
    path = {"SHEPHERD_SEARCH_PATH": f"file://{outside}/conf"}
    command = processes.shepherd("train", "exp=reinforce", "plugins=[reinforce]", *quick)
    done = subprocess.run(
        command, cwd=outside, env=processes.environment(tmp_path, **path), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    run = RunDirectory(outside / "run")
    assert run.read_summary()["model"]["name"] == "reinforce-CartPole-v1"
    assert run.read_config()["plugins"] == ["reinforce"]
    # Nothing is imported because a run says so: whoever goes on names it again.
    for words in (["evaluate", "run", "--episodes", "2"], ["resume", "run"]):
        assert cli.main(words) == 2
        assert "SHEPHERD_PLUGINS=reinforce before the command" in capsys.readouterr().err
    monkeypatch.setenv(plugins.VARIABLE, "reinforce")
    assert cli.main(["evaluate", "run", "--episodes", "2"]) == 0
    assert cli.main(["resume", "run"]) == 0
    assert cli.main(["agents"]) == 0
    assert "shepherd train exp=reinforce" in capsys.readouterr().out
    from flows import load_policy

    assert load_policy(outside / "run").predict(np.zeros((3, 4), np.float32)).shape == (3,)


class Incomplete:
    Config = object
    Agent = build = None


@pytest.mark.parametrize(
    ("name", "module", "says"),
    [
        ("ppo", Incomplete, "the name is taken"),
        ("mine", type("Empty", (), {}), "it has no Config"),
        ("mine", Incomplete, "a Config that is no AlgorithmConfig"),
    ],
)
def test_a_mistake_in_a_plugin_is_a_sentence(name: str, module: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        register(name, module)


def test_a_module_that_is_not_there_and_one_that_only_a_file_names_are_refused(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"SHEPHERD_PLUGINS=nowhere: this module cannot be imported"):
        compose(["exp=ppo", "plugins=[nowhere]"])
    (outside / "torn.py").write_text("def (")
    (outside / "folder").mkdir()
    for module, says in (
        ("torn", "cannot be imported"),
        (".x", "cannot be imported"),
        ("folder", "name a module in it"),
    ):
        monkeypatch.setenv(plugins.VARIABLE, module)
        with pytest.raises(UserError, match=says):
            plugins.load()
    monkeypatch.setenv(plugins.VARIABLE, "")
    preset = outside / "conf/exp/sly.yaml"
    preset.write_text("# @package _global_\ndefaults:\n  - ppo\n  - _self_\nplugins: [reinforce]\n")
    with pytest.raises(UserError, match=r"plugins=\[reinforce\]: .* nothing is imported because a file names it"):
        compose(["exp=sly"])
    assert "reinforce" not in sys.modules
