from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory, write_json


def test_existing_names_runs_inside_folder(tmp_path):
    for name in "abcd":
        RunDirectory(tmp_path / "deep" / name).make("", {"run_id": name}, "{}")
    with pytest.raises(
        UserError, match=r"contains runs, but is not a run; give one of its runs: \S+/deep/a, \S+/b, \S+/c, …$"
    ):
        RunDirectory.existing(tmp_path)


def test_existing_requires_config_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run here \(no config.yaml\)"):
        RunDirectory.existing(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert RunDirectory.existing(tmp_path).path == tmp_path


def test_removed_if_refused_removes_only_own_files(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    run = RunDirectory(tmp_path / "runs/ppo/first")
    run.make("", {"run_id": "1"}, "{}")
    with pytest.raises(UserError), RunDirectory(run.path).removed_if_refused():
        raise UserError("a run that another process made")
    assert run.config.exists()
    with pytest.raises(UserError), run.removed_if_refused():
        raise UserError("env.id=Mine-v0: step raised ValueError")
    assert [*tmp_path.rglob("*")] == [tmp_path / "runs"]
    run.path.mkdir(parents=True)
    with pytest.raises(UserError), run.removed_if_refused():
        raise UserError("the run is removed already, and the user created a folder of this name")
    run.path.rmdir()
    run.make("", {"run_id": "2"}, "{}")
    with pytest.raises(UserError), RunDirectory(run.path).driving(), run.removed_if_refused():
        raise UserError("another process is writing this run")
    assert run.config.exists()
    write_json(run.card, {"tier": "A"})
    with pytest.raises(UserError), run.removed_if_refused():
        raise UserError("later than make-env")
    assert run.card.exists()


def test_read_summary_of_unfinished_run_is_empty(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_summary() == {}
    write_json(run.summary, {"algo": "ppo"})
    assert run.read_summary() == {"algo": "ppo"}


HOLD = """
import sys
from rlcore.store.directory import RunDirectory
with RunDirectory(sys.argv[1]).writing():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_writing_refuses_second_writer_until_first_ends(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"pid {holder.pid} on .* is writing this run"), run.writing():
            raise RuntimeError("not reached")
        holder.kill()
        holder.wait()
    with run.writing():
        assert f"pid {os.getpid()}" in run.lock.read_text()


def test_write_json_replaces_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "names.json"
    write_json(path, {"best": "1"})
    write_json(path, {"best": "2"})
    assert json.loads(path.read_text()) == {"best": "2"}
    assert [p.name for p in path.parent.iterdir()] == ["names.json"]


def test_write_json_keeps_old_file_if_unserializable(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    write_json(path, {"best": "1"})
    with pytest.raises(TypeError):
        write_json(path, {"best": object()})
    assert json.loads(path.read_text()) == {"best": "1"}


def test_write_json_on_full_disk_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "names.json"
    write_json(path, {"best": "1"})

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"names.json could not be written \(No space left on device\)"):
        write_json(path, {"best": "2"})
    assert json.loads(path.read_text()) == {"best": "1"}
    assert [p.name for p in tmp_path.iterdir()] == ["names.json"]


def test_write_json_removes_leftovers_of_dead_writers(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for owner in (gone.pid, 1, "x", "9" * 50):
        (tmp_path / f".names.json.tmp-{owner}").write_text("{")
    (tmp_path / f".other.json.tmp-{gone.pid}").write_text("{")
    write_json(tmp_path / "names.json", {})
    remaining = sorted(p.name for p in tmp_path.iterdir())
    assert remaining == [".names.json.tmp-1", f".other.json.tmp-{gone.pid}", "names.json"]


def test_refuse_second_writer_takes_no_lock(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.refuse_second_writer()
    assert not run.lock.exists()
    with run.writing():
        with pytest.raises(UserError, match=f"pid {os.getpid()} on .* is writing this run"):
            run.refuse_second_writer()
        assert run.lock.read_text().startswith(f"pid {os.getpid()} on")
    run.refuse_second_writer()
    with run.writing():
        assert run.lock.exists()


def test_is_taken_while_run_is_driven_or_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.is_taken()
    for holding in (run.driving, run.writing):
        with holding():
            assert run.is_taken()
            with pytest.raises(UserError, match=f"pid {os.getpid()} on .* is writing this run"):
                run.refuse_second_writer()
        assert not run.is_taken()


def test_writing_refuses_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="run: cannot be written"),
        RunDirectory(tmp_path / "file" / "run").writing(),
    ):
        raise RuntimeError("not reached")


@pytest.mark.parametrize("name", ["lock", ".driver"])
def test_refuse_second_writer_names_folder_in_place_of_lock(tmp_path: Path, name: str) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / name).mkdir()
    assert not run.is_taken()
    with pytest.raises(UserError, match=rf"/{name}: is a folder, but must be a file; move the folder away$"):
        run.refuse_second_writer()
