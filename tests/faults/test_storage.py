"""A disk that fills up or turns read-only while a run trains, and a second process: no valid data is lost."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.runs.trainer_process import TrainerProcess
from rlcore.errors import DiskFault, UserError
from rlcore.store import checkpoint, retry
from rlcore.store.checkpoint import writing
from rlcore.store.compare import differences
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, read_events
from rlcore.train.run_trainer import RunTrainer
from tests.faults.failing_disk import FAULTS, environment
from tests.runs import prepare
from tests.soaking import always, heavy

pytestmark = heavy

ROOT = Path(__file__).resolve().parents[2]
SEED = 20262


# Power failure: files are durable before they get their name ----------------------------------------------------------


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trace of fsyncs (by file name) and renames (old > new), in order."""
    trace: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(descriptor: int) -> None:
        fsync(descriptor)
        trace.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def traced_rename(source: Any, target: Any) -> None:
        rename(source, target)
        trace.append(f"{Path(source).name} > {Path(target).name}")

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    monkeypatch.setattr(os, "replace", traced_rename)
    return trace


@always
def test_save_syncs_log_and_files_before_rename(tmp_path: Path, durable: list[str]) -> None:
    run = prepare(tmp_path / "run", checkpoint__keep_last=1)
    session = RunTrainer(run)
    for _ in range(2):
        session.advance(lambda facts: None)
        first = session.save()
    durable.clear()
    session.advance(lambda facts: None)
    second = session.save()
    session.close()
    old, new = first["policy_steps"], second["policy_steps"]
    temporary = f".{new}.tmp-{os.getpid()}"
    assert durable == [
        "events.jsonl",
        *("state.json", "tensors.safetensors", "state.json", "manifest.json"),
        *("learning", "bookkeeping", temporary),
        f"{temporary} > {new}",
        "checkpoints",
        *(f".names.json.tmp-{os.getpid()}", f".names.json.tmp-{os.getpid()} > names.json", "checkpoints"),
        f"{old} > .{old}.tmp-{os.getpid()}-old",
        "events.jsonl",
    ]


def test_first_event_syncs_new_folders(tmp_path: Path, durable: list[str]) -> None:
    EventLog(tmp_path / "outer" / "inner" / "events.jsonl").append("start", run_id="a")
    assert durable == [tmp_path.name, "outer", "events.jsonl", "inner"]


# A trainer ------------------------------------------------------------------------------------------------------------

CONFIG = {
    "total_steps": 768,
    "checkpoint__every": 128,
    "checkpoint__keep_last": None,
    "evaluation__every": 256,
    "metric__log_every": 64,
    "algo__normalize_obs": True,
    "algo__anneal_lr": True,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = prepare(tmp_path_factory.mktemp("undisturbed") / "run", **CONFIG)
    session = RunTrainer(run)
    while drive(lambda: session.advance(lambda facts: None), session.save, session.evaluate):
        continue
    session.close()
    return run


def drive(advance: Callable[[], Any], save: Callable[[], Any], evaluate: Callable[[], Any]) -> bool:
    """Advance to the next boundary, save and evaluate if due; return whether training continues."""
    boundary = advance()
    for name, act in (("checkpoint", save), ("evaluate", evaluate)):
        if name in boundary.due:
            act()
    return not boundary.done


def train(run: RunDirectory, limit: int | None = None) -> None:
    """Train in a separate process to the end; `limit` is the maximum size of a file it can write."""
    trainer = TrainerProcess(run)
    try:
        if limit is not None:
            resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        while drive(trainer.advance, trainer.checkpoint, trainer.evaluate):
            continue
    finally:
        trainer.stop()


def points(run: RunDirectory) -> list[tuple[str, int]]:
    events = (e for e in read_events(run.events) if e["kind"] in ("metrics", "evaluation"))
    return [(e["kind"], e["policy_steps"]) for e in events]


def good(run: RunDirectory) -> set[str]:
    return {path.name for path in checkpoint.newest_first(run.checkpoints) if checkpoint.damage(path) is None}


@contextmanager
def nothing_lost(run: RunDirectory) -> Iterator[None]:
    """Check that no valid checkpoint and no event is lost."""
    checkpoints, events = good(run), points(run)
    yield
    assert good(run) >= checkpoints
    assert points(run)[: len(events)] == events


def test_trainer_on_failing_disks_resumes_to_same_digest(
    undisturbed: RunDirectory, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run", **CONFIG)
    fails = random.Random(SEED)
    full, readonly = FAULTS["half a write, then ENOSPC"], FAULTS["EROFS from then on"]

    # The disk of the event log is full in the middle of training: 3 operations for `sync`, rare events, metrics.
    with nothing_lost(run), monkeypatch.context() as patch:
        for name, value in environment(library, run.events, 8, full).items():
            patch.setenv(name, value)
        with pytest.raises(DiskFault, match=r"events.jsonl: cannot write an event \(No space left on device\)"):
            train(run)
    assert good(run)

    # Read-only from an operation within a checkpoint on.
    at = fails.randrange(40, 80)
    print(f"seed {SEED}: read-only at operation {at}")
    with nothing_lost(run), monkeypatch.context() as patch:
        for name, value in environment(library, run.path, at, readonly).items():
            patch.setenv(name, value)
        with pytest.raises(DiskFault, match=r"\(Read-only file system\)"):
            train(run)

    # A real limit: tensors do not fit.
    with nothing_lost(run), pytest.raises(DiskFault, match=r"checkpoint .* could not be written \(File too large\)"):
        train(run, limit=20_000)

    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with nothing_lost(run):
        train(run)
    assert sorted(points(run)) == sorted(points(undisturbed))
    last = [checkpoint.resolve(r, "latest") for r in (run, undisturbed)]
    assert last[0].name == last[1].name
    assert list(differences(*last)) == []
    assert not list(run.path.rglob(".*"))


def full_for(attempts: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make the first `attempts` saves find a full disk; the returned list records the pauses, which are skipped."""
    write, tries, pauses = writing.write_synced, iter(range(attempts)), []

    def refuse(path: Path, content: bytes) -> None:
        if path.name == "manifest.json" and next(tries, None) is not None:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(writing, "write_synced", refuse)
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    return pauses


def test_save_retries_while_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = prepare(tmp_path / "run")
    session = RunTrainer(run)
    session.advance(lambda facts: None)
    at = session.policy_steps
    pauses = full_for(2, monkeypatch)
    saved = session.save()
    session.close()
    assert (saved["policy_steps"], session.policy_steps) == (at, at)  # nothing was trained again
    assert checkpoint.damage(run.path / saved["path"]) is None
    assert pauses == [1.0, 2.0]
    assert caplog.text.count("(No space left on device); older ones are untouched; retrying in") == 2


def test_save_raises_disk_fault_after_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = prepare(tmp_path / "run")
    session = RunTrainer(run)
    session.advance(lambda facts: None)
    pauses = full_for(1000, monkeypatch)
    with pytest.raises(DiskFault, match=r"checkpoint .* could not be written \(No space left on device\)"):
        session.save()
    session.close()
    assert pauses == [1.0, 2.0]
    assert not list(run.checkpoints.iterdir())


def test_resume_keeps_scores_missing_from_log(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", checkpoint__every=64, evaluation__every=128)
    session = RunTrainer(run)
    while len(session.scores) < 2:
        drive(lambda: session.advance(lambda facts: None), session.save, session.evaluate)
    session.advance(lambda facts: None)
    session.save()
    session.close()
    run.events.write_bytes(b"\x00" * 500 + b"\n")
    resumed = RunTrainer(run)
    resumed.close()
    assert resumed.scores == session.scores


def test_writing_refuses_read_only_run_directory(library: Path, tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    script = (
        "import sys; from rlcore.store.directory import RunDirectory\n"
        "from rlcore.errors import UserError\n"
        "try:\n"
        "    with RunDirectory(sys.argv[1]).writing(): print('held')\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.path)],
        env=os.environ | environment(library, run.path, 1, FAULTS["EROFS from then on"]) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{run.path}: cannot be written (Read-only file system); choose another run_dir\n"


def test_save_ignores_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmpdir").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "tmpdir"):
        monkeypatch.setenv("TMPDIR", str(place))
        monkeypatch.setattr(tempfile, "tempdir", None)
        renamed: list[tuple[Path, Path]] = []
        rename = os.rename

        def watch(source: Any, target: Any, renamed: Any = renamed, rename: Any = rename) -> None:
            renamed.append((Path(source), Path(target)))
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", watch)
            path = checkpoint.save(tmp_path / place.name / "checkpoints", 64, {"count": 1}, {})
        assert [(s.parent, t) for s, t in renamed] == [(path.parent, path)]
    assert list((tmp_path / "tmpdir").iterdir()) == [tmp_path / "tmpdir" / "checkpoints"]


def test_save_warns_about_little_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=70))
    path = checkpoint.save(tmp_path, 64, {"count": 1}, {})
    assert checkpoint.damage(path) is None
    assert "70 bytes are free" in caplog.text


@always
def test_stage_reports_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows import settings as home
    from flows.cli import main as cli
    from flows.stages import collect

    run = prepare(tmp_path / "run")

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(home, "configure_environment", lambda: None)
    monkeypatch.setattr(collect, "write_synced", full)
    assert cli.main(["stage", "collect", str(run.path)]) == 1
    output = capsys.readouterr().err.splitlines()
    assert output[-1] == f"shepherd: failed: {run.dataset / 'steps-000000.safetensors'}: No space left on device"


# A second process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["resume"], ["stage", "train"]])
def test_command_refuses_run_in_training(tmp_path: Path, command: list[str]) -> None:
    run = prepare(tmp_path / "run")
    EventLog(run.events).append("start", run_id="run")
    home = {"SHEPHERD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    with run.writing():
        before = contents(run.path)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from flows.cli.main import main; sys.exit(main())",
                *command,
                str(run.path),
            ],
            env=os.environ | home,
            capture_output=True,
            text=True,
        )
        assert contents(run.path) == before
    sentence = f"shepherd: {run.path}: pid {os.getpid()} on {os.uname().nodename} is writing this run; wait for it"
    assert done.stderr.startswith(sentence), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_run_of_refuses_run_in_training(tmp_path: Path) -> None:
    from flows.workers.flow_run import _run_of

    run = prepare(tmp_path / "run")
    with run.writing():
        before = contents(run.path)
        with pytest.raises(UserError, match=f"pid {os.getpid()} .* is writing this run"):
            _run_of("ppo", [], str(run.path), None)
        assert contents(run.path) == before
    _run_of("ppo", [], str(run.path), None)
