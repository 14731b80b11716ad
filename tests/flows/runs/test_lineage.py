"""Lineage: code version, code diff and origin of a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from flows.config.compose import compose
from flows.runs import lineage
from flows.runs.create import create_run
from flows.stages.summary import summarise
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import checkpointed_run
from tests.processes import finish_here
from tests.runs import prepare


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=me", "-c", "user.email=me@here"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a git checkout that replaces the project's own."""
    folder = tmp_path / "code"
    (folder / "rlcore").mkdir(parents=True)
    (folder / "rlcore/a.py").write_bytes("x = 1  # \u00e9\n".encode("latin-1"))
    (folder / "rlcore/b.bin").write_bytes(bytes(range(256)))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(lineage, "CODE", folder)
    return folder


def new_run(folder: Path) -> RunDirectory:
    overrides = ["exp=ppo", f"run_dir={folder}"]
    return create_run(*compose(overrides), overrides)


def test_code_diff_restores_changed_files(code: Path, tmp_path: Path) -> None:
    clean = new_run(tmp_path / "clean")
    assert not clean.code_diff.exists()
    assert clean.read_identity()["code_diff"] is None
    (code / "rlcore/a.py").write_bytes("x = 2  # \u00e9\n".encode("latin-1"))
    (code / "rlcore/b.bin").write_bytes(bytes(255))
    run = new_run(tmp_path / "dirty")
    identity = run.read_identity()
    assert (identity["dirty"], identity["commit"]) == (True, git(code, "rev-parse", "HEAD").strip())
    assert identity["code_diff"] == lineage.hash_of_diff(lineage.code_diff()) is not None
    again = tmp_path / "again"
    git(tmp_path, "clone", "--quiet", str(code), str(again))
    git(again, "checkout", "--quiet", identity["commit"])
    git(again, "apply", str(run.code_diff))
    for name in ("rlcore/a.py", "rlcore/b.bin"):
        assert (again / name).read_bytes() == (code / name).read_bytes()


def test_core_hash_reads_only_changed_modules_again(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = lineage.core_hash(), list[str]()
    hash_file = lineage._file_hash
    monkeypatch.setattr(lineage, "_file_hash", lambda path: (read.append(path.name), hash_file(path))[1])
    (code / "rlcore/new.py").write_text("y = 1\n")
    assert lineage.core_hash() != before
    (code / "rlcore/new.py").unlink()
    assert lineage.core_hash() == before
    (code / "rlcore/a.py").write_text("x = 234\n")
    assert lineage.core_hash() != before
    assert read == ["new.py", "a.py"]


def test_code_diff_is_empty_without_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed").mkdir()
    monkeypatch.setattr(lineage, "CODE", tmp_path / "installed")
    assert (lineage.code_diff(), lineage.hash_of_diff(lineage.code_diff())) == (b"", None)


def test_summarise_writes_lineage_file(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    last = finish_here(run)
    summarise(run)
    lineage_data = json.loads(run.lineage.read_text())
    newest = checkpoint.resolve(run, "latest")
    assert lineage_data["checkpoints"][newest.name]["digest"] == last
    assert lineage_data["run_id"] == run.read_identity()["run_id"]
    assert {"device", "threads", "libraries", "plugins", "python"} <= lineage_data["machine"].keys()
    assert (lineage_data["compile"], lineage_data["dataset_digest"]) == ("eager", "none")


def test_summarise_accepts_run_of_older_version(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "old", "old", weights=1)
    summarise(run)
    lineage_data = json.loads(run.lineage.read_text())
    assert (lineage_data["run_id"], lineage_data["machine"], lineage_data["checkpoints"]) == ("old", {}, {})
