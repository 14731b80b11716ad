"""The code of docs/deploying.md runs an exported file in a process that cannot import Shepherd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flows import load_policy
from flows.config.compose import compose
from flows.runs.create import create_run
from flows.stages.make_env import make_env
from rlcore.evaluation.export import export_files
from rlcore.evaluation.policy import write_policy_folder
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.examples.test_guides import RUN, blocks
from tests.soaking import heavy

pytest.importorskip("onnxruntime")
STATES = np.array([[0.02, -0.01, 0.03, 0.04], [0.0, 1.5, -0.1, -0.9]], np.float32)
SHORT = RUN[1:]
CODE = [text for language, _, text in blocks("deploying") if language == "python"]
WITHOUT = "import sys; sys.modules |= dict.fromkeys({names}); exec(open('code.py').read())"  # importing None fails


def train(folder: Path, *overrides: str) -> RunDirectory:
    typed = [*overrides, *SHORT, f"run_dir={folder}"]
    run = create_run(*compose(typed), typed)
    make_env(run)
    session = RunTrainer(run)
    session.advance(lambda progress: None)
    session.save()
    session.close()
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a user with a feed-forward run, its exported files, and its policy."""
    folder = tmp_path_factory.mktemp("user")
    run = train(folder / "runs/cartpole", "exp=ppo")
    write_policy_folder(run, checkpoint.resolve(run, "latest"), folder / "policy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (code,) = (text for text in CODE if "import flows" in text)
        exec(compile(code, "deploying.md", "exec"), {})
    return folder


@pytest.fixture(scope="module")
def memory(folder: Path) -> Path:
    """Return the same folder; it also has a recurrent run and its exported files."""
    train(folder / "runs/memory", "exp=ppo_recurrent")
    export_files(load_policy(folder / "runs/memory"), folder / "memory.onnx", folder / "memory.pt2")
    return folder


def run_alone(code: str, folder: Path, *blocked: str) -> list[str]:
    """Run code without Shepherd and further modules, in a folder with files alone; return the lines that it prints."""
    (folder / "code.py").write_text(code)
    command = [sys.executable, "-c", WITHOUT.format(names=["rlcore", "flows", *blocked])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def block_with(*parts: str) -> str:
    (code,) = (text for text in CODE if "import flows" not in text and all(part in text for part in parts))
    return code


@pytest.mark.parametrize(
    ("parts", "blocked"),
    [(["policy.onnx"], ["torch"]), (["policy.pt2"], ["onnx"]), (["agent.safetensors"], ["torch", "onnxruntime"])],
    ids=lambda value: value[0],
)
def test_code_gives_actions_of_policy(parts: list[str], blocked: list[str], folder: Path) -> None:
    expected = load_policy(folder / "runs/cartpole").predict(STATES).tolist()
    assert run_alone(block_with(*parts), folder, *blocked)[0] == str(expected)


@heavy
@pytest.mark.parametrize(("file", "blocked"), [("memory.onnx", "torch"), ("memory.pt2", "onnx")])
def test_code_gives_actions_of_recurrent_policy(file: str, blocked: str, memory: Path) -> None:
    policy, carry, expected = load_policy(memory / "runs/memory"), None, list[str]()
    for state in np.linspace(-0.1, 0.1, 20, dtype=np.float32).reshape(5, 1, 4):
        action, carry = policy.step(state, carry)
        expected.append(str(action.item()))
    assert run_alone(block_with(file), memory, blocked) == expected


def test_every_block_of_page_is_run() -> None:
    files = ("policy.onnx", "policy.pt2", "agent.safetensors", "memory.onnx", "memory.pt2")
    tested = [block_with(file) for file in files]
    assert len(CODE) == len(tested) + 1 and len({*tested}) == len(tested)


def test_process_of_code_cannot_import_shepherd(folder: Path) -> None:
    with pytest.raises(AssertionError, match="import of rlcore halted"):
        run_alone("import rlcore", folder)
