"""A user's folder with a plugin (algorithm, environment and configs), used by all commands without registration."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from flows.cli.main import main
from flows.runs.create import new_run
from flows.runs.lineage import lineage
from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests import processes
from tests.flows.conftest import home  # noqa: F401 - a fixture
from tests.retries import run_command
from tests.soaking import always, heavy
from tests.stores import standing_api

pytestmark = [heavy, pytest.mark.slow, pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")]
EXAMPLES = processes.ROOT / "examples"
PLUGIN = "plugins=[my_package]"
CONF = {
    "algo/mine.yaml": "defaults: [default, _self_]\nname: mine\n",
    "env/mine.yaml": "defaults: [default, _self_]\nid: Corridor\n"
    "wrapper: {_target_: my_package.corridor.Corridor, length: 6}\n",
    "exp/mine.yaml": "# @package _global_\n# Mine.\ndefaults: [override /algo: mine, override /env: mine, _self_]\n"
    "algo: {total_steps: 4096, rollout_steps: 64}\nevaluation: {final_episodes: 100, baseline_episodes: 100}\n",
}


@pytest.fixture(scope="module")
def folder(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: F811
    """The user's folder, with a run trained by `shepherd train`."""
    mine = tmp_path_factory.mktemp("user")
    for name, text in CONF.items():
        (mine / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / "conf" / name).write_text(text)
    (mine / "my_package").mkdir()
    (mine / "my_package/__init__.py").write_text('"""Mine."""\n\nfrom my_package import learner\n')
    shutil.copy(EXAMPLES / "corridor/corridor.py", mine / "my_package/corridor.py")
    algorithm = (EXAMPLES / "reinforce/reinforce.py").read_text().replace('"reinforce"', '"mine"')
    (mine / "my_package/learner.py").write_text(algorithm)
    variables = processes.environment(home, SHEPHERD_SEARCH_PATH="conf", **standing_api())
    command = processes.shepherd("train", "exp=mine", PLUGIN, "run_dir=run", "env.capture_video=false")
    done = run_command(command, cwd=mine, env=variables, text=True)
    assert done.returncode == 0, done.stderr
    (mine / "output.txt").write_text(done.stdout)
    yield mine


@pytest.fixture(autouse=True)
def user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """The run; the working directory is the user's folder, and no plugin is named yet."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", "conf")
    monkeypatch.setenv(plugins.VARIABLE, "")
    yield RunDirectory(folder / "run")
    forget()


def forget() -> None:
    """Reset this process as if the plugin was never named or imported."""
    os.environ[plugins.VARIABLE] = ""
    ALGORITHMS.pop("mine", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@always
def test_train_with_plugin_registers_champion(folder: Path, user: RunDirectory) -> None:
    summary = user.read_summary()
    assert summary["model"]["name"] == "mine-Corridor"
    assert summary["eval"]["greedy"]["mean"] > 0.9  # at most 5 steps of -0.01, then a reward of 1
    assert user.read_config()["plugins"] == ["my_package"]
    assert "shepherd enjoy run 'plugins=[my_package]'" in (folder / "output.txt").read_text()
    plugins.name(["my_package"])
    assert user.read_identity()["plugins"] == plugins.hashes()
    assert lineage(user)["plugin.my_package"] == plugins.hashes()["my_package"]


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "run", "--episodes", "2"],
        ["enjoy", "run"],
        ["resume", "run"],
        ["stage", "evaluate", "run"],
        ["evaluate", "models:/mine-Corridor@champion", "--episodes", "2"],
        ["train", "exp=ppo", "init_from=run", "run_dir=new"],
    ],
    ids=" ".join,
)
def test_commands_require_plugin_to_be_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "add plugins=[my_package] to the command" in capsys.readouterr().err
    assert "my_package" not in sys.modules


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "-h", "exp=mine", "rollout"], "algo.rollout_steps = 64    (default 256)"),
        (["agents"], "shepherd train exp=mine 'plugins=[my_package]'"),
        (["config", "exp=mine"], "_target_: my_package.corridor.Corridor"),
        (["evaluate", "run", "--episodes", "2"], "random baseline"),
        (["resume", "run"], "already finished"),
        (["stage", "register-model", "run"], '"name": "mine-Corridor", "version": 1'),
        (["evaluate", "models:/mine-Corridor@champion", "--episodes", "2"], "random baseline"),
        (["diff", "run", "run"], "identical"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_commands_accept_plugins_override(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, PLUGIN]) == 0
    assert expected in capsys.readouterr().out


def trained(folder: Path, name: str, cut: int = -1) -> RunDirectory:
    """A short run; after iteration `cut` it is saved, closed and loaded from disk."""
    quick = ["algo.total_steps=1536", "evaluation.every=1000000", "checkpoint.every=1000000"]
    run = new_run(["exp=mine", PLUGIN, *quick, f"run_dir={name}"])
    from flows.stages.make_env import make_env

    make_env(run)
    session = RunTrainer(run)

    def on_progress(facts: dict[str, Any]) -> None:
        session.interrupted = session.iterations == cut

    session.advance(on_progress)
    session.save()
    session.close()
    if cut >= 0:
        session = RunTrainer(run)
        session.advance(lambda facts: None)
        session.save()
        session.close()
    return run


def test_plugin_run_resumes_and_diff_names_change(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(folder, "whole")
    trained(folder, "cut", cut=2)
    assert main(["diff", "whole", "cut"]) == 0
    path = folder / "my_package/corridor.py"
    text = path.read_text()
    try:
        path.write_text(text.replace("0.01", "0.02"))
        forget()
        trained(folder, "other")
    finally:
        path.write_text(text)
    assert main(["diff", "whole", "other"]) == 1
    assert "plugins.my_package: " in capsys.readouterr().out


SERVED = """
import os, sys
from pathlib import Path
import numpy, mlflow.pyfunc
obs = numpy.load("obs.npy")
try:
    mlflow.pyfunc.load_model("models:/mine-Corridor@champion")
except Exception as error:
    print(error)
assert "my_package" not in sys.modules
os.environ["SHEPHERD_PLUGINS"] = "my_package"
model = mlflow.pyfunc.load_model("models:/mine-Corridor@champion")
import my_package
assert Path(my_package.__file__).parts[-3:-1] == ("code", "my_package"), my_package.__file__
numpy.save("actions.npy", model.predict(obs)["action"])
"""


def test_plugin_model_is_served_with_saved_code(user: RunDirectory, tmp_path: Path) -> None:
    from flows import load_policy

    plugins.name(["my_package"])
    obs = np.linspace(0, 1, 8, dtype=np.float32).reshape(4, 2)
    np.save(tmp_path / "obs.npy", obs)
    command = [sys.executable, "-P", "-c", SERVED]
    variables = os.environ | {"PYTHONPATH": "", plugins.VARIABLE: ""}  # the plugin cannot be imported from here
    done = run_command(command, cwd=tmp_path, env=variables, text=True)
    assert done.returncode == 0, done.stderr
    assert "plugins=[my_package]: this run or model needs the plugin" in done.stdout
    assert "set SHEPHERD_PLUGINS=my_package" in done.stdout
    assert np.load(tmp_path / "actions.npy").tolist() == load_policy(user.path).predict(obs).tolist()


def test_make_env_sets_aside_run_of_changed_plugin(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["config", "exp=mine", "--params", PLUGIN]) == 0
    (folder / "params.yaml").write_text(capsys.readouterr().out)
    forget()
    command = ["stage", "make-env", "dvc", "--params", "params.yaml"]
    assert main(command) == 2  # the file names the plugin, the command does not
    assert main([*command, PLUGIN]) == 0
    first = RunDirectory(folder / "dvc").read_identity()["run_id"]
    assert main([*command, PLUGIN]) == 0
    assert RunDirectory(folder / "dvc").read_identity()["run_id"] == first
    (folder / "my_package/more.py").write_text("")
    forget()
    assert main([*command, PLUGIN]) == 0
    assert [path.name for path in (folder / "dvc/set_aside").iterdir()] == [first]
    assert "plugin my_package has changed" in caplog.text


def test_deploy_includes_flows_of_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.workers import pools, up

    monkeypatch.setenv("SHEPHERD_HOME", str(processes.ROOT))
    client = MagicMock()
    client.__enter__.return_value = client
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: client)
    entrypoint = f"{processes.ROOT}/flows/train.py:train_mine"
    from prefect.flows import load_flow_from_entrypoint

    with pytest.raises(UserError, match="start the worker with SHEPHERD_PLUGINS set to the name of the plugin"):
        load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    monkeypatch.setenv(plugins.VARIABLE, "my_package")
    assert load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False).name == "train-mine"
    assert {"train-mine/default", "train-mine/gpu"} <= set(pools.deploy())
    entrypoints = [call.kwargs["entrypoint"] for call in client.create_deployment.call_args_list]
    assert entrypoints.count("flows/train.py:train_mine") == 2
    variables = up._worker(1).variables  # the worker has another working directory
    assert variables["SHEPHERD_SEARCH_PATH"] == str(Path("conf").absolute())
    assert os.getcwd() in variables["PYTHONPATH"].split(os.pathsep)
