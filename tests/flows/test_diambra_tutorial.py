"""The files of the SheepRL tutorial for DIAMBRA, in a user's folder: they compose, and train with engines.

`diambra_tutorial` contains every key and value of the files of the tutorial, and its `.env`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config.compose import compose
from rlcore.store.directory import RunDirectory
from tests.diambra_engine import engines
from tests.processes import NO_STORE, environment, shepherd
from tests.soaking import always, heavy, soak
from tests.stores import furnish, standing_api

pytestmark = heavy

FILES = Path(__file__).parent / "diambra_tutorial"
KEYS = {f"{side}_{key}" for side in ("own", "opp") for key in ("character", "health", "side", "wins")}
# One iteration, with small values for keys that the tutorial's files do not set.
SHORT = [
    "algo.total_steps=128",
    "evaluation.episodes=1",
    "evaluation.final_episodes=2",
    "evaluation.baseline_episodes=2",
    "evaluation.max_episode_steps=40",
    "model_manager.disabled=true",
    "env.capture_video=false",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's folder as described in the tutorial."""
    shutil.copytree(FILES / "configs", tmp_path / "configs")
    shutil.copy(FILES / "dotenv", tmp_path / ".env")
    for script in ("train.py", "evaluate.py"):  # of the tutorial, with `from flows import ...` and `@main`
        shutil.copy(FILES / script, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def served() -> Iterator[list[str]]:
    with engines(6) as addresses:
        yield addresses


def run(
    folder: Path,
    *arguments: str,
    addresses: list[str] = [],  # noqa: B006
    **more: str,
) -> subprocess.CompletedProcess[str]:
    variables = environment(folder / "home", **NO_STORE, **more) | {"DIAMBRA_ENVS": " ".join(addresses)}
    variables.pop("SHEEPRL_SEARCH_PATH", None)
    command = [sys.executable, *arguments] if arguments[0].endswith(".py") else shepherd(*arguments)
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@always
@pytest.mark.parametrize(
    ("exp", "expected"),
    [
        ("custom_exp", {"env.num_envs": 1, "env.sync_env": True, "fabric.devices": 1}),
        ("custom_parallel_env_exp", {"env.num_envs": 4, "env.sync_env": False}),
        ("custom_fabric_exp", {"fabric.devices": 2, "fabric.accelerator": "cuda", "fabric.precision": "bf16"}),
        ("custom_metric_exp", {"metric.disable_timer": True, "metric.aggregator.metrics": "Loss/policy_loss"}),
    ],
)
def test_compose_reads_tutorial_experiments(folder, exp, expected, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv(*(folder / ".env").read_text().strip().split("="))
    _, tree = compose([f"exp={exp}"])
    assert [tree["algo"][key] for key in ("rollout_steps", "dense_units", "mlp_layers", "dense_act")] == [
        32,
        16,
        1,
        "tanh",
    ]
    assert tree["algo"]["optimizer"]["lr"] == 5e-3 and tree["algo"]["optimizer"]["eps"] == 1e-6
    assert tree["algo"]["encoder"]["cnn_features_dim"] == 128 and tree["algo"]["cnn_keys"]["encoder"] == ["frame"]
    assert tree["env"]["wrapper"]["diambra_settings"]["outfits"] == 2 and tree["buffer"]["size"] == 32
    for key, value in expected.items():
        found = tree
        for part in key.split("."):
            found = found[part]
        assert found == value or value in found, key


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("exp", "count", "more"),
    [
        pytest.param("custom_exp", 2, [], marks=soak),  # included in the others
        ("custom_parallel_env_exp", 6, []),
        ("custom_metric_exp", 3, ["fabric.accelerator=cpu"]),  # includes custom_fabric_exp, which is for GPUs
    ],
)
def test_train_tutorial_experiments_on_engines(folder, served, exp, count, more):
    furnish(folder / "home")
    words = ["train", f"exp={exp}", *SHORT, *more, "run_dir=mine"]
    warm = {"SHEPHERD_WARM": os.environ["SHEPHERD_WARM"]}
    done = run(folder, *words, addresses=served[:count], **standing_api(), **warm)
    assert done.returncode == 0, done.stderr[-3000:]
    mine = RunDirectory(folder / "mine")
    card = json.loads(mine.card.read_text())
    assert {"frame", "stage", "timer", "action", *KEYS} == {*card["keys"]}
    assert card["tier"] == "boundary" and card["observation_space"]["frame"] == "Box 64×64×3 uint8, 0 to 255"
    assert json.loads(mine.summary.read_text())["policy_steps"] == 128


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_tutorial_scripts_train_and_evaluate(folder, served):
    furnish(folder / "home")
    more = standing_api() | {"SHEPHERD_WARM": os.environ["SHEPHERD_WARM"]}
    words = ["train.py", "exp=custom_exp", *SHORT, "run_dir=mine"]
    done = run(folder, *words, addresses=served[:2], **more)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(RunDirectory(folder / "mine").summary.read_text())["policy_steps"] == 128
    words = ["evaluate.py", "checkpoint_path=mine", "env.capture_video=False"]
    done = run(folder, *words, addresses=served[:2], **more)
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = (folder / "mine" / "evaluations").glob("*-round1-2.json")
    assert len(json.loads(written.read_text())["greedy"]["returns"]) == 2


def test_tutorial_train_script_refuses_other_environments(folder):
    done = run(folder, "train.py", "exp=ppo")
    assert "You must choose a DIAMBRA environment. Got 'CartPole-v1' provided by 'gymnasium'." in done.stderr
    done = run(folder, "train.py", "exp=custom_expp")
    assert done.returncode == 2
    assert done.stderr == "shepherd: exp=custom_expp: no such file in the group exp; did you mean 'custom_exp'?\n"
    assert not os.path.exists(folder / "runs")


def test_train_refuses_missing_engines_before_run(folder):
    done = run(folder, "train", "exp=custom_parallel_env_exp", "env.wrapper.diambra_settings.step_ratio=0")
    assert done.returncode == 2
    engine, key = done.stderr.strip().splitlines()
    assert "5 engines are needed" in engine and engine.endswith("diambra run -s=5 shepherd train …")
    assert "env.wrapper.diambra_settings.step_ratio=0: must be" in key
    assert not os.path.exists(folder / "runs")
