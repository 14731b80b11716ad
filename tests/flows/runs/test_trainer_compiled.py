"""Trainer with a compiled gradient step: exact resume after kills, also during compilation."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.runs.trainer import trainer_for
from flows.runs.trainer_process import TrainerProcess
from flows.stages.train import train
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from tests.processes import digest_of
from tests.retries import Patience
from tests.runs import prepare
from tests.soaking import soak

ROOT = Path(__file__).resolve().parents[3]
# Each build takes up to a minute: only `make soak` runs these tests. tests/kills has one compiled run for `make test`.
pytestmark = soak
SETTINGS: dict[str, Any] = {
    "algo__compile": True,
    "algo__normalize_obs": True,
    "algo__normalize_reward": True,
    "algo__anneal_lr": True,
    "algo__clip_vloss": True,
    "algo__max_grad_norm": 0.5,
    "algo__encoder__mlp_layers": 0,
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def finish(run: RunDirectory) -> str:
    train(run)
    trainer_for(run).stop()
    return digest_of(run)


def test_compiled_run_resumes_bitwise_after_rebuild(tmp_path: Path, cache: Path) -> None:
    whole = finish(prepare(tmp_path / "whole", **SETTINGS))
    first = sorted(path.name.partition(".")[0] for path in cache.glob("*.pt2"))
    shutil.rmtree(cache)
    run = prepare(tmp_path / "killed", **SETTINGS)
    for _ in range(2):
        trainer = TrainerProcess(run)
        if "checkpoint" in trainer.advance().due:
            trainer.checkpoint()
        trainer.advance()  # lost
        trainer.process.kill()
        trainer.stop()
    assert finish(run) == whole
    assert sorted(path.name.partition(".")[0] for path in cache.glob("*.pt2")) == first
    assert (
        checkpoint.load(checkpoint.resolve(run, "latest"))[1]["fingerprint"]["learning"]["compile"] == "ahead-of-time"
    )
    assert "compiling " in run.log.read_text()


def processes_of(cache: Path) -> list[str]:
    """Return commands with a path in the cache: those of compiling child, watchdog and compiler."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(cache) in command:
            found.append(command)
    return found


def wait_until(condition: Any, seconds: float) -> bool:
    patience = Patience(seconds, limit=10 * seconds)
    while not (found := condition()) and not patience.over:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_trainer_killed_while_compiling_leaves_no_process(
    number: int, code: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "g++"  # does not terminate
    compiler.write_text('#!/bin/sh\ncase "$*" in *.cpp*) while :; do sleep 0.1; done;; esac\necho "g++ 12.2.0"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    run = prepare(tmp_path / "run", **SETTINGS)
    command = [sys.executable, "-m", "rlcore.train.server", str(run.path)]
    with open(run.log, "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT)
    assert process.stdin is not None
    process.stdin.write(b'{"command": "begin"}\n')
    process.stdin.flush()
    assert wait_until(lambda: any(str(compiler) in process_command for process_command in processes_of(cache)), 60), (
        run.log.read_text()
    )
    assert len(processes_of(cache)) >= 3  # compiling child, its watchdog, compiler
    process.send_signal(number)
    assert process.wait(5) == code
    assert wait_until(lambda: not processes_of(cache), 2), processes_of(cache)
    process.stdin.close()


def test_compile_true_without_compiler_names_missing_package(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run", **SETTINGS)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"algo.compile=true: this machine has no C\+\+ compiler .* apt install g\+\+"):
        TrainerProcess(run)


def test_compile_auto_is_kept_for_longer_budget(tmp_path: Path, cache: Path) -> None:
    run = prepare(tmp_path / "run", total_steps=128, checkpoint__every=64, evaluation__every=1_000_000)
    train(run)
    trainer_for(run).stop()
    values = yaml.safe_load(run.config.read_text())
    values["algo"]["total_steps"] = 2_000_000  # long enough for auto to compile
    run.config.write_text(yaml.safe_dump(values))
    trainer = TrainerProcess(run)
    assert trainer.advance().policy_steps > 128
    trainer.stop()
    assert not cache.exists()
