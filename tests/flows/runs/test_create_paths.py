"""Paths: relative ones refer to the user's working directory, and errors name unusable ones."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from flows.runs.create import new_run
from flows.settings import configure_environment, state_folder, tracking_uri
from flows.tracking.mlflow_store import prepare_store
from rlcore import plugins
from rlcore.envs.card import environment_card
from rlcore.errors import UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import write_json
from rlcore.train.run_trainer import RunTrainer

PLUGIN = """
import os
import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

class Wanders(PendulumEnv):
    def __init__(self, render_mode=None):
        super().__init__(render_mode=render_mode)
        os.chdir({there!r})

    def step(self, action):
        os.chdir({there!r})
        return super().step(action)

os.chdir({there!r})
gymnasium.register("Wanders-v0", entry_point=Wanders, max_episode_steps=20)
"""
OVERRIDES = "exp=sac env.id=Wanders-v0 plugins=[wanders] env.num_envs=2 buffer.memmap=true buffer.memmap_dir=rows"


@pytest.fixture
def changed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder to which the environment changes; the user works in `tmp_path/here`."""
    changed_folder, here = tmp_path / "there", tmp_path / "here"
    changed_folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(plugins.VARIABLE, "wanders")
    Path("wanders.py").write_text(PLUGIN.format(there=str(changed_folder)))
    yield changed_folder
    del sys.modules["wanders"], gymnasium.registry["Wanders-v0"]


def test_new_run_ignores_changed_working_directory(changed_folder: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    run = new_run([*OVERRIDES.split(), "run_name=one", "algo.learning_starts=8", "algo.total_steps=64"])
    assert Path.cwd() == here
    assert run.path == here / "runs/sac/Wanders-v0/one"
    card = environment_card(config_of(run).env)
    assert Path.cwd() == here
    write_json(run.card, card)

    session = RunTrainer(run)
    assert Path.cwd() == changed_folder  # open environments may read files relative to it
    session.advance(lambda progress: None)
    session.save()
    session.evaluate()
    session.close()
    assert list(changed_folder.iterdir()) == []
    assert (here / "rows").is_dir()
    assert list((here / "runs/sac/Wanders-v0/one/checkpoints").glob("[0-9]*"))


def test_configure_environment_makes_paths_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ |= {"SHEPHERD_HOME": "home", "MLFLOW_TRACKING_URI": "sqlite:///a/b.db", "MINARI_DATASETS_PATH": "data"}
    configure_environment()
    paths = [os.environ[name] for name in ("SHEPHERD_HOME", "MLFLOW_TRACKING_URI", "MINARI_DATASETS_PATH")]
    assert paths == [str(tmp_path / "home"), f"sqlite:///{tmp_path}/a/b.db", str(tmp_path / "data")]


def test_configure_environment_follows_shepherd_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("PREFECT_HOME", "MLFLOW_TRACKING_URI"):
        os.environ.pop(name, None)
    os.environ["MLFLOW_LOGGING_LEVEL"] = "ERROR"
    for home in (tmp_path / "first", tmp_path / "second"):
        os.environ["SHEPHERD_HOME"] = str(home)
        assert tracking_uri() == f"sqlite:///{home}/.shepherd/mlflow.db"
        configure_environment()
        assert os.environ["PREFECT_HOME"] == f"{home}/.shepherd/prefect"
        assert os.environ["MLFLOW_TRACKING_URI"] == tracking_uri() == f"sqlite:///{home}/.shepherd/mlflow.db"
        assert os.environ["MLFLOW_LOGGING_LEVEL"] == "ERROR"  # set by the user


def test_new_run_refuses_unwritable_memmap_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    with pytest.raises(UserError, match=r"^buffer.memmap_dir=a_file/rows: cannot be written \(Not a directory\); "):
        new_run(["exp=sac", "env.id=Pendulum-v1", "buffer.memmap=true", "buffer.memmap_dir=a_file/rows"])
    assert not Path("runs").exists()


def test_state_folder_refuses_file_as_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "a_file"))
    with pytest.raises(UserError, match=r"^SHEPHERD_HOME=.*/a_file: .* cannot be created \(File exists\); choose a "):
        state_folder()


def test_new_run_refuses_too_long_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^run_dir=.*…x+: cannot be read \(File name too long\); choose "):
        new_run(["exp=ppo", f"run_dir={tmp_path}/{'x' * 5_000}"])


def test_new_run_refuses_folder_that_cannot_be_created() -> None:
    with pytest.raises(UserError, match=r"^run_dir=/proc/x: cannot be written \(No such file or directory\); choose "):
        new_run(["exp=ppo", "env.id=CartPole-v1", "run_dir=/proc/x"])


def test_new_run_refuses_unsupported_mlflow_store(tmp_path: Path) -> None:
    overrides = ["exp=ppo", "env.id=CartPole-v1", f"run_dir={tmp_path}/run", "metric.logger.tracking_uri=ftp://x"]
    with pytest.raises(UserError, match="^metric.logger.tracking_uri=ftp://x: MLflow has no store for addresses"):
        new_run(overrides)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "PREFECT_API_URL"])
def test_configure_environment_refuses_malformed_address(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {name: "http://[x"})
    message = rf"^{name}=http://\[x: not an address \(Invalid IPv6 URL\); correct it or leave {name} unset$"
    with pytest.raises(UserError, match=message):
        configure_environment()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("sqlite:///{0}/a_file/x.db", "cannot be created"),
        ("sqlite:///{0}", "is a folder, not a file; give an SQLite file, such as"),
        ("mysql://host/name", "this database needs the Python package MySQLdb, which is not installed; install it$"),
        ("postgresql+nothing://host/name", "not the address of a database"),
        ("http://[x", r"not an address \(Invalid IPv6 URL\)"),
        ("ftp://host", "MLflow has no store for addresses that begin with ftp:; use a path, or one of the schemes"),
    ],
)
def test_prepare_store_refuses_unusable_address(tmp_path: Path, address: str, reason: str) -> None:
    (tmp_path / "a_file").touch()
    uri = address.format(tmp_path)
    with pytest.raises(UserError, match=f"^MLFLOW_TRACKING_URI={re.escape(uri)}: .*{reason}"):
        prepare_store(uri)
