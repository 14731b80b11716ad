"""A disk that fails at the N-th operation, fills up, turns read-only; a second process: nothing good is ever lost."""

from __future__ import annotations

import json
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

from flows.runs.trainer import TrainerProcess
from rlcore.errors import DiskFault, UserError
from rlcore.store import checkpoint, retry
from rlcore.store.checkpoint import writing
from rlcore.store.compare import differences
from rlcore.store.directory import RunDirectory
from rlcore.store.events import EventLog, read_events
from rlcore.train.run_trainer import RunTrainer
from tests.faults import sweeps
from tests.faults.failing_disk import FAULTS, compiled, environment
from tests.retries import run_command
from tests.runs import prepare
from tests.soaking import always, heavy

pytestmark = heavy

ROOT = Path(__file__).resolve().parents[2]
SEED = 20262


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("library"))


# The N-th operation ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(library: Path) -> Iterator[list[dict[str, Any]]]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of fsyncs that nothing depends on
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = run_command(
            [sys.executable, "-m", "tests.faults.sweeps", folder],
            cwd=ROOT,
            env=os.environ | environment(library) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            text=True,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    yield [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("procedure", sweeps.PROCEDURES)
def test_whichever_operation_fails_nothing_acknowledged_is_lost(swept: list[dict[str, Any]], procedure: str) -> None:
    found = [said for said in swept if said["procedure"] == procedure]
    print(f"{procedure}: " + "; ".join(f"{said['operations']} x {said['fault']}" for said in found))
    assert [said["failure"] for said in found if said["failure"]] == []
    assert len(found) >= 2
    assert all(said["operations"] >= 5 for said in found)


# What a power cut would leave: nothing gets its name before it is durable ---------------------------------------------


@pytest.fixture
def durable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Order in which files are made durable (by their last name) and renamed (old > new)."""
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
def test_a_checkpoint_is_durable_before_its_name_and_the_log_before_both(tmp_path: Path, durable: list[str]) -> None:
    run = prepare(tmp_path / "run", checkpoint__keep_last=1)
    session = RunTrainer(run)
    for _ in range(2):
        session.advance(lambda said: None)
        first = session.save()
    durable.clear()
    session.advance(lambda said: None)
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


def test_new_folders_and_the_first_event_are_durable(tmp_path: Path, durable: list[str]) -> None:
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
    while drive(lambda: session.advance(lambda said: None), session.save, session.evaluate):
        continue
    session.close()
    return run


def drive(advance: Callable[[], Any], save: Callable[[], Any], evaluate: Callable[[], Any]) -> bool:
    """To the next boundary and what is due there; whether training goes on."""
    boundary = advance()
    for name, act in (("checkpoint", save), ("evaluate", evaluate)):
        if name in boundary.due:
            act()
    return not boundary.done


def train(run: RunDirectory, limit: int | None = None) -> None:
    """Train with a process of its own until it ends; under a limit it can write no file longer than that."""
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
    """Good checkpoints stay, and events too."""
    checkpoints, events = good(run), points(run)
    yield
    assert good(run) >= checkpoints
    assert points(run)[: len(events)] == events


def test_a_trainer_on_disks_that_fail_ends_with_a_sentence_and_at_last_in_the_same_bits(
    undisturbed: RunDirectory, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run", **CONFIG)
    fails = random.Random(SEED)
    full, readonly = FAULTS["half a write, then ENOSPC"], FAULTS["EROFS from then on"]

    # The event log's disk is full in the middle of training: 3 operations for `sync`, what is rare, metrics.
    with nothing_lost(run), monkeypatch.context() as patch:
        for name, value in environment(library, run.events, 8, full).items():
            patch.setenv(name, value)
        with pytest.raises(DiskFault, match=r"events.jsonl: cannot write an event \(No space left on device\)"):
            train(run)
    assert good(run)

    # Every file is one too many, from somewhere in a checkpoint on.
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
    """Checkpoints find the disk full so many times; the pauses that are then made, instead of making them."""
    write, tries, pauses = writing.write_synced, iter(range(attempts)), []

    def refuse(path: Path, content: bytes) -> None:
        if path.name == "manifest.json" and next(tries, None) is not None:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(writing, "write_synced", refuse)
    monkeypatch.setattr(retry.time, "sleep", pauses.append)
    return pauses


def test_what_is_in_memory_is_saved_when_a_full_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = prepare(tmp_path / "run")
    session = RunTrainer(run)
    session.advance(lambda said: None)
    at = session.policy_steps
    pauses = full_for(2, monkeypatch)
    saved = session.save()
    session.close()
    assert (saved["policy_steps"], session.policy_steps) == (at, at)  # nothing was trained again
    assert checkpoint.damage(run.path / saved["path"]) is None
    assert pauses == [1.0, 2.0]
    assert caplog.text.count("(No space left on device); older ones are untouched; retrying in") == 2


def test_a_disk_that_stays_full_ends_after_a_few_tries_with_a_failure_of_its_own_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepare(tmp_path / "run")
    session = RunTrainer(run)
    session.advance(lambda said: None)
    pauses = full_for(1000, monkeypatch)
    with pytest.raises(DiskFault, match=r"checkpoint .* could not be written \(No space left on device\)"):
        session.save()
    session.close()
    assert pauses == [1.0, 2.0]
    assert not list(run.checkpoints.iterdir())


def test_evaluations_that_the_log_has_lost_still_count_for_stopping_early(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", checkpoint__every=64, evaluation__every=128)
    session = RunTrainer(run)
    while len(session.scores) < 2:
        drive(lambda: session.advance(lambda said: None), session.save, session.evaluate)
    session.advance(lambda said: None)
    session.save()
    session.close()
    run.events.write_bytes(b"\x00" * 500 + b"\n")
    resumed = RunTrainer(run)
    resumed.close()
    assert resumed.scores == session.scores


def test_a_run_folder_that_cannot_be_written_is_said_before_training(library: Path, tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    script = (
        "import sys; from rlcore.store.directory import RunDirectory\n"
        "from rlcore.errors import UserError\n"
        "try:\n"
        "    with RunDirectory(sys.argv[1]).writing(): print('held')\n"
        "except UserError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(run.path)],
        env=os.environ | environment(library, run.path, 1, FAULTS["EROFS from then on"]) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"{run.path}: cannot be written (Read-only file system); choose another run_dir\n"


def test_temporary_files_go_beside_the_checkpoint_wherever_tmpdir_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_little_space_is_warned_of_and_tried_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=70))
    path = checkpoint.save(tmp_path, 64, {"count": 1}, {})
    assert checkpoint.damage(path) is None
    assert "70 bytes are free" in caplog.text


@always
def test_a_full_disk_in_any_stage_is_told_in_a_sentence(
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
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"shepherd: failed: {run.dataset / 'steps-000000.safetensors'}: No space left on device"


# A second process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["resume"], ["stage", "train"]])
def test_a_command_on_a_run_that_another_process_trains_is_refused_and_touches_nothing(
    tmp_path: Path, command: list[str]
) -> None:
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


def test_a_flow_on_a_run_that_another_process_trains_is_refused_before_it_notes_anything(tmp_path: Path) -> None:
    from flows.workers.flow_run import _run_of

    run = prepare(tmp_path / "run")
    with run.writing():
        before = contents(run.path)
        with pytest.raises(UserError, match=f"pid {os.getpid()} .* is writing this run"):
            _run_of("ppo", [], str(run.path), None)
        assert contents(run.path) == before
    _run_of("ppo", [], str(run.path), None)
