from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.errors import RunError, UserError
from rlcore.store.directory import RunDirectory, write_json


def test_a_folder_of_runs_that_is_given_for_one_names_those_inside(tmp_path):
    for name in "abcd":
        RunDirectory(tmp_path / "deep" / name).make("", {"run_id": name}, "{}")
    with pytest.raises(
        UserError, match=r"contains runs, but is not a run; give one of its runs: \S+/deep/a, \S+/b, \S+/c, …$"
    ):
        RunDirectory.existing(tmp_path)


def test_only_a_folder_with_a_config_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run here \(no config.yaml\)"):
        RunDirectory.existing(tmp_path)
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert RunDirectory.existing(tmp_path).path == tmp_path


def test_removed_if_refused_leaves_only_what_was_there(tmp_path: Path) -> None:
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


def test_summary_of_an_unfinished_run_is_empty(tmp_path: Path) -> None:
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


def test_a_second_writer_is_refused_by_name_until_the_first_is_gone_in_any_way(tmp_path: Path) -> None:
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


def test_json_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "names.json"
    write_json(path, {"best": "1"})
    write_json(path, {"best": "2"})
    assert json.loads(path.read_text()) == {"best": "2"}
    assert [p.name for p in path.parent.iterdir()] == ["names.json"]


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    write_json(path, {"best": "1"})
    with pytest.raises(TypeError):
        write_json(path, {"best": object()})
    assert json.loads(path.read_text()) == {"best": "1"}


def test_a_disk_that_refuses_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "names.json"
    write_json(path, {"best": "1"})

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"names.json could not be written \(No space left on device\)"):
        write_json(path, {"best": "2"})
    assert json.loads(path.read_text()) == {"best": "1"}
    assert [p.name for p in tmp_path.iterdir()] == ["names.json"]


def test_what_a_killed_writer_left_is_cleared_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for owner in (gone.pid, 1, "x", "9" * 50):
        (tmp_path / f".names.json.tmp-{owner}").write_text("{")
    (tmp_path / f".other.json.tmp-{gone.pid}").write_text("{")
    write_json(tmp_path / "names.json", {})
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == [".names.json.tmp-1", f".other.json.tmp-{gone.pid}", "names.json"]


def test_asking_for_a_second_writer_changes_nothing_and_holds_nothing(tmp_path: Path) -> None:
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


def test_a_run_is_taken_while_a_process_leads_or_writes_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.is_taken()
    for holding in (run.driving, run.writing):
        with holding():
            assert run.is_taken()
            with pytest.raises(UserError, match=f"pid {os.getpid()} on .* is writing this run"):
                run.refuse_second_writer()
        assert not run.is_taken()


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="run: cannot be written"),
        RunDirectory(tmp_path / "file" / "run").writing(),
    ):
        raise RuntimeError("not reached")
