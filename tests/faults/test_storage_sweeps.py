"""Procedures that write to disk, with their N-th storage operation failing for N = 1, 2, 3, … until none fails.

    LD_PRELOAD=failing_disk.so python -m tests.faults.test_storage_sweeps FOLDER

This process imports everything once. If the fault kills, it forks a child for each N and checks the files left. It
prints a JSON line per sweep: procedure, fault, operations, failure (null if there is none).
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.config.compose import dump
from flows.runs import create as store
from flows.runs.create import create_run
from flows.runs.lineage import code_version
from rlcore.errors import RunError, UserError
from rlcore.run_config import build_config
from rlcore.store import checkpoint, retry
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog, read_events
from rlcore.train.run_trainer import RunTrainer
from tests.faults.failing_disk import FAULTS, KILL, Disk, Fault, environment
from tests.retries import run_command
from tests.runs import prepare, values
from tests.soaking import heavy

pytestmark = heavy

DISK = Disk()
ROOT = Path(__file__).resolve().parents[2]
Acknowledge = Callable[[str], None]


@dataclass
class Outcome:
    """What is known outside of the process whose disk failed: what it acknowledged, and how it ended."""

    acknowledged: list[str] = field(default_factory=list)
    ending: str = "killed"  # or done, refused, or a traceback
    operations: int = 0


class Procedure:
    """A procedure to sweep. Before each N, `folder` is restored to the state after `prepare`."""

    faults = tuple(FAULTS)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        raise NotImplementedError

    def act(self, acknowledge: Acknowledge) -> None:
        raise NotImplementedError

    def check(self, outcome: Outcome) -> None:
        """Check that nothing acknowledged is lost and nothing is incomplete."""
        raise NotImplementedError

    def check_again(self) -> None:
        """Check the state after another attempt on a working disk."""
        raise NotImplementedError


def content(policy_steps: int) -> dict[str, Any]:
    return {"weight": torch.full((50,), float(policy_steps)), "count": policy_steps}


def good_checkpoints(run: RunDirectory) -> list[int]:
    """Policy steps of the checkpoints, each of which must be undamaged."""
    found = list(checkpoint.newest_first(run.checkpoints))
    for path in found:
        wrong = checkpoint.damage(path)
        assert wrong is None, f"{path.name}: {wrong}"
    return sorted(int(path.name) for path in found)


class Checkpoints(Procedure):
    """save, prune and name_best in a run with older checkpoints and temporary files of a killed writer."""

    faults = ("ENOSPC", "ENOSPC from then on", "half a write, then ENOSPC", "EROFS from then on", "SIGKILL")

    def prepare(self) -> None:
        run = RunDirectory(self.folder)
        for policy_steps in (64, 128, 192):
            checkpoint.save(run.checkpoints, policy_steps, content(policy_steps), {"time": 0})
        checkpoint.name_best(run, run.checkpoints / "64")
        leftover = run.checkpoints / ".256.tmp-1" / "learning"
        leftover.mkdir(parents=True)
        (leftover / "state.json").write_text("{")

    def act(self, acknowledge: Acknowledge) -> None:
        run = RunDirectory(self.folder)
        path = checkpoint.save(run.checkpoints, 256, content(256), {"time": 0})
        acknowledge("saved")
        checkpoint.prune(run, 2, path)
        checkpoint.name_best(run, run.checkpoints / "256")
        acknowledge("best")

    def check(self, outcome: Outcome) -> None:
        run = RunDirectory(self.folder)
        found = good_checkpoints(run)
        assert 192 in found, found
        assert 256 in found or "saved" not in outcome.acknowledged, found
        newest = checkpoint.newest_good(run.checkpoints)
        assert newest is not None
        assert int(newest.name) == found[-1]
        learning, _ = checkpoint.load(newest)
        assert learning["count"] == found[-1]
        assert torch.equal(learning["weight"], content(found[-1])["weight"])
        best = checkpoint.resolve(run, "best").name
        assert best == "256" if "best" in outcome.acknowledged else best in ("64", "256"), best

    def check_again(self) -> None:
        run = RunDirectory(self.folder)
        assert good_checkpoints(run) in ([64, 192, 256], [192, 256])
        assert checkpoint.resolve(run, "best").name == "256"
        assert not list(run.checkpoints.glob(".*")), list(run.checkpoints.glob(".*"))


class OverDamaged(Checkpoints):
    """Saving over a damaged checkpoint of the same name."""

    faults = ("ENOSPC from then on", "SIGKILL")

    def prepare(self) -> None:
        super().prepare()
        run = RunDirectory(self.folder)
        path = checkpoint.save(run.checkpoints, 256, content(256), {"time": 0})
        (path / "learning" / "tensors.safetensors").write_bytes(b"")

    def check(self, outcome: Outcome) -> None:
        path = self.folder / "checkpoints" / "256"
        if path.exists() and checkpoint.damage(path):
            assert "saved" not in outcome.acknowledged
            shutil.rmtree(path)  # may still be damaged
        super().check(outcome)


class Events(Procedure):
    """Two events after an incomplete line."""

    def prepare(self) -> None:
        log = EventLog(self.folder / "events.jsonl")
        log.append("start", run_id="a")
        log.append("metrics", policy_steps=100, values={"x": 1.0})
        with open(log.path, "a") as handle:
            handle.write('{"kind": "metrics", "env_st')

    def act(self, acknowledge: Acknowledge) -> None:
        log = EventLog(self.folder / "events.jsonl")
        log.append("metrics", policy_steps=200, values={"x": 1.0})
        acknowledge("200")
        log.sync()
        log.append("evaluation", policy_steps=300, final=False, greedy={"mean": 1.0})
        acknowledge("300")

    def check(self, outcome: Outcome) -> None:
        points = [e.get("policy_steps") for e in read_events(self.folder / "events.jsonl")]
        assert points[:2] == [None, 100], points
        assert set(map(int, outcome.acknowledged)) <= set(points[2:]), (outcome, points)
        assert points[2:] in ([], [200], [200, 300]), points

    def check_again(self) -> None:
        path = self.folder / "events.jsonl"
        assert [e.get("policy_steps") for e in read_events(path)] == [None, 100, 200, 300]
        assert all(json.loads(line) for line in path.read_text().splitlines())


class FirstEvent(Procedure):
    """The first event of a log in a folder that does not exist yet."""

    def prepare(self) -> None:
        self.folder.mkdir(parents=True)

    def act(self, acknowledge: Acknowledge) -> None:
        EventLog(self.folder / "deep" / "events.jsonl").append("start", run_id="a")
        acknowledge("start")

    def check(self, outcome: Outcome) -> None:
        found = list(read_events(self.folder / "deep" / "events.jsonl"))
        assert len(found) <= 1
        assert found or not outcome.acknowledged

    def check_again(self) -> None:
        found = list(read_events(self.folder / "deep" / "events.jsonl"))
        assert {e["run_id"] for e in found} == {"a"}


class SmallFile(Procedure):
    """write_json over an older file."""

    def prepare(self) -> None:
        write_json(self.folder / "summary.json", {"status": "training"})

    def act(self, acknowledge: Acknowledge) -> None:
        write_json(self.folder / "summary.json", {"status": "finished"})
        acknowledge("written")

    def check(self, outcome: Outcome) -> None:
        status = RunDirectory(self.folder).read_summary()["status"]
        assert status == "finished" if outcome.acknowledged else status in ("training", "finished"), status

    def check_again(self) -> None:
        assert [p.name for p in self.folder.iterdir()] == ["summary.json"]
        assert RunDirectory(self.folder).read_summary()["status"] == "finished"


class NewRun(Procedure):
    """create_run."""

    faults = ("EIO", "ENOSPC from then on", "SIGKILL")

    def prepare(self) -> None:
        self.folder.mkdir(parents=True)
        whole = values("CartPole-v1", 512, run_dir=str(self.folder / "algo" / "run"))
        self.config, self.values = build_config(whole), {"env": whole["env"]}  # writing all of it takes PyYAML 50 ms

    def act(self, acknowledge: Acknowledge) -> None:
        run = RunDirectory(self.folder / "algo" / "run")
        if not run.config.exists():  # else the run is complete except for its last step; `shepherd resume` accepts it
            create_run(self.config, self.values, ["seed=42"])
        acknowledge("created")

    def check(self, outcome: Outcome) -> None:
        run = RunDirectory(self.folder / "algo" / "run")
        assert run.config.exists() or not outcome.acknowledged
        if run.config.exists():
            self._check_whole(run)

    def _check_whole(self, run: RunDirectory) -> None:
        assert run.config.read_text() == dump(self.values)
        assert run.read_identity()["env_id"] == "CartPole-v1"
        assert run.overrides.read_text() == "seed=42\n"

    def check_again(self) -> None:
        run = RunDirectory(self.folder / "algo" / "run")
        self._check_whole(run)
        assert not list(run.path.glob(".*"))


class SessionSave(Procedure):
    """`RunTrainer.save` and `RunTrainer.evaluate` of a run in training."""

    faults = ("EROFS from then on", "SIGKILL")

    def prepare(self) -> None:
        self.run = prepare(
            self.folder, total_steps=512, checkpoint__every=128, evaluation__every=128, evaluation__episodes=1
        )
        self.session = RunTrainer(self.run)
        self.digests: dict[int, str] = {}
        self.attempts = 0
        for _ in range(2):
            self.session.advance(lambda facts: None)
            self.digests[self.session.policy_steps] = self.session.save()["digest"]
            self.session.evaluate()
        self.session.advance(lambda facts: None)
        self.steps = [*self.digests, self.session.policy_steps]

    def act(self, acknowledge: Acknowledge) -> None:
        self.session.scores.pop(self.steps[-1], None)  # as it was before the last attempt
        self.session.owed = ["evaluate"]
        acknowledge(self.session.save()["digest"])
        self.session.evaluate()
        acknowledge("evaluated")

    def check(self, outcome: Outcome) -> None:
        found = good_checkpoints(self.run)
        assert found == self.steps or (found == self.steps[:2] and not outcome.acknowledged), found
        for policy_steps, digest in self.digests.items():
            assert checkpoint.manifest(self.run.checkpoints / str(policy_steps))["digest"] == digest
        newest = checkpoint.manifest(self.run.checkpoints / str(found[-1]))
        assert not outcome.acknowledged or outcome.acknowledged[0] == newest["digest"]
        judged = self._judged()
        assert judged == self.steps or (judged == self.steps[:2] and "evaluated" not in outcome.acknowledged), judged

    def _judged(self) -> list[int]:
        return [e["policy_steps"] for e in read_events(self.run.events) if e["kind"] == "evaluation"]

    def check_again(self) -> None:
        assert self._judged() == self.steps
        assert not list(self.run.path.rglob(".*")), list(self.run.path.rglob(".*"))
        self.attempts += 1
        if self.attempts % 8:  # a session takes a while to build
            return
        resumed = RunTrainer(self.run)
        assert (resumed.policy_steps, resumed.owed) == (self.steps[-1], [])
        assert sorted(resumed.scores) == self.steps
        resumed.close()


PROCEDURES: dict[str, type[Procedure]] = {
    "checkpoint": Checkpoints,
    "checkpoint over a damaged one": OverDamaged,
    "events": Events,
    "first event": FirstEvent,
    "small file": SmallFile,
    "new run": NewRun,
    "session": SessionSave,
}


def run_and_report(act: Callable[[Acknowledge], None], acknowledge: Acknowledge) -> str:
    try:
        act(acknowledge)
    except (RunError, UserError) as refusal:
        return "refused" if len(str(refusal)) > 20 else f"not a sentence: {refusal}"
    except Exception:
        return traceback.format_exc()
    return "done"


def in_process(act: Callable[[Acknowledge], None]) -> Outcome:
    outcome = Outcome()
    outcome.ending = run_and_report(act, outcome.acknowledged.append)
    outcome.operations = DISK.disarm()
    return outcome


def in_child(act: Callable[[Acknowledge], None]) -> Outcome:
    """Run the procedure in a forked child and receive its messages over a pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:

        def send(**fields: Any) -> None:
            os.write(writing, (json.dumps(fields) + "\n").encode())

        ended = run_and_report(act, lambda what: send(acknowledged=what))
        send(ending=ended, operations=DISK.disarm())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        messages = [json.loads(line) for line in pipe]
    os.waitpid(pid, 0)
    outcome = Outcome([s["acknowledged"] for s in messages if "acknowledged" in s])
    if messages and "ending" in messages[-1]:
        outcome.ending, outcome.operations = messages[-1]["ending"], messages[-1]["operations"]
    return outcome


def sweep(procedure: Procedure, template: Path, fault: Fault) -> int:
    """Run the procedure with the fault at each storage operation; return the number of operations."""
    attempt = in_child if fault.mode == KILL else in_process
    for n in itertools.count(1):
        shutil.rmtree(procedure.folder)
        shutil.copytree(template, procedure.folder)

        def act(acknowledge: Acknowledge, n: int = n) -> None:
            DISK.arm(procedure.folder, n, fault)
            procedure.act(acknowledge)

        outcome = attempt(act)
        try:
            assert outcome.ending in ("done", "refused", "killed"), outcome.ending
            procedure.check(outcome)
            second = in_process(procedure.act)
            assert second.ending == "done", second.ending
            procedure.check_again()
        except Exception as error:
            raise AssertionError(f"operation {n}: {outcome}") from error
        if outcome.ending != "killed" and outcome.operations < n:
            assert outcome.ending == "done"
            return outcome.operations
    raise AssertionError("unreachable")


def main(folder: Path) -> None:
    gc.freeze()  # children copy less memory
    retry.PAUSES = ()  # no retries, so that each fault is checked separately
    store.code_version = functools.cache(code_version)  # each call starts four processes of git
    for name, kind in PROCEDURES.items():
        live, template = folder / name / "live", folder / name / "template"
        procedure = kind(live)
        procedure.prepare()
        shutil.copytree(live, template)
        for label in procedure.faults:
            result: dict[str, Any] = {"procedure": name, "fault": label, "operations": 0, "failure": None}
            try:
                result["operations"] = sweep(procedure, template, FAULTS[label])
            except AssertionError:
                result["failure"] = traceback.format_exc()
            print(json.dumps(result), flush=True)


# The test ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(library: Path) -> Iterator[list[dict[str, Any]]]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of fsyncs that are not needed here
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = run_command(
            [sys.executable, "-m", "tests.faults.test_storage_sweeps", folder],
            cwd=ROOT,
            env=os.environ | environment(library) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            text=True,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    yield [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_failed_disk_operation_loses_nothing_acknowledged(swept: list[dict[str, Any]], procedure: str) -> None:
    found = [result for result in swept if result["procedure"] == procedure]
    print(f"{procedure}: " + "; ".join(f"{result['operations']} x {result['fault']}" for result in found))
    assert [result["failure"] for result in found if result["failure"]] == []
    assert len(found) >= 2
    assert all(result["operations"] >= 5 for result in found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
