"""Output and exit code of `shepherd diff`."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.cli.main import main
from flows.runs.trainer_process import TrainerProcess
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.processes import finish_here
from tests.runs import prepare


def train_run(folder: Path, **settings: Any) -> RunDirectory:
    run = prepare(folder, total_steps=192, checkpoint__every=64, **settings)
    session = RunTrainer(run)
    while not (boundary := session.advance(lambda progress: None)).done:
        if "checkpoint" in boundary.due:
            session.save()
    session.save()
    session.close()
    return run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train_run(tmp_path_factory.mktemp("first") / "run")


def diff(
    first: RunDirectory | Path, second: RunDirectory | Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    places = [str(p.path if isinstance(p, RunDirectory) else p) for p in (first, second)]
    code = main(["diff", *places])
    output = capsys.readouterr()
    return code, output.out + output.err


def test_diff_of_same_config_is_identical(
    first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = diff(first, train_run(tmp_path / "run", env__sync_env=False), capsys)
    assert code == 0
    assert output.startswith("identical")


def test_diff_names_changed_bit(first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint.resolve(first, "latest")
    learning, bookkeeping = checkpoint.load(path)
    weight = learning["learner"]["agent"]["critic.layers.0.weight"]
    before = weight[3, 2].item()
    weight.view(torch.int32)[3, 2] ^= 1
    changed = checkpoint.save(tmp_path, int(path.name), learning, bookkeeping)
    code, output = diff(path, changed, capsys)
    assert code == 1
    assert "first difference: learner/agent/critic.layers.0.weight[3, 2]" in output
    size = float(re.search(r"largest \|Δ\| (\S+)", output)[1])
    assert size == pytest.approx(abs(before - weight[3, 2].item()), rel=1e-5)
    assert size < 1e-6
    assert "please report it" in output  # config, versions and machine are equal


def test_diff_names_changed_config(first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = diff(first, train_run(tmp_path / "run", algo__gamma=0.97), capsys)
    assert code == 1
    assert "first difference: " in output
    assert "algo.gamma: 0.99 and 0.97" in output


def test_diff_names_nondeterministic_environment(
    first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = train_run(tmp_path / "run", seed=7)
    card = json.loads(other.card.read_text())
    other.card.write_text(json.dumps(card | {"deterministic": False}))
    code, output = diff(first, other, capsys)
    assert code == 1
    assert "CartPole-v1: the same seed and actions give different episodes" in output


@pytest.mark.parametrize("place", ["", "checkpoints", "nowhere"])
def test_diff_refuses_folder_without_run(
    place: str, first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    code, output = diff(first, tmp_path / place, capsys)
    assert (code, output.count("\n")) == (2, 1), output


def test_diff_refuses_damaged_checkpoint(
    first: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint.resolve(first, "latest")
    learning, bookkeeping = checkpoint.load(path)
    other = checkpoint.save(tmp_path, int(path.name), learning, bookkeeping)
    tensors = other / "learning/tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    code, output = diff(path, other, capsys)
    assert code == 2
    assert "tensors.safetensors" in output


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_diff_accepts_run_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"total_steps": 2560, "checkpoint__every": 64, "checkpoint__keep_last": None}
    whole = prepare(tmp_path / "whole", **settings)
    finish_here(whole)
    running = prepare(tmp_path / "running", **(settings | {"checkpoint__keep_last": 2}))
    trainer = TrainerProcess(running)

    def work() -> None:
        while not (boundary := trainer.advance()).done:
            if "checkpoint" in boundary.due:
                trainer.checkpoint()
        trainer.checkpoint()
        trainer.stop()

    training = threading.Thread(target=work)
    training.start()
    codes = []
    while training.is_alive():
        if checkpoint.newest_good(running.checkpoints):
            codes.append(diff(whole, running, capsys)[0])
        training.join(0.01)
    assert len(codes) >= 5
    assert set(codes) == {0}
