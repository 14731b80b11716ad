"""Whatever writes to disk, with its N-th storage operation failing for N = 1, 2, 3, … until it passes.

    LD_PRELOAD=failing_disk.so python -m tests.faults.sweeps FOLDER

One process imports everything once. Where the fault kills, it forks a child for each N and looks at what is left.

Prints a JSON line a sweep: procedure, fault, operations, failure (null when all is well).
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from tests.faults.failing_disk import FAULTS, KILL, Disk, Fault
from tests.runs import prepare, values

DISK = Disk()
Acknowledge = Callable[[str], None]


@dataclass
class Outcome:
    """Facts known outside of a process whose disk failed: what it acknowledged, and how it ended."""

    acknowledged: list[str] = field(default_factory=list)
    ending: str = "killed"  # or done, refused, or a traceback
    operations: int = 0


class Procedure:
    """Procedure that is swept. `folder` is as `prepare` left it before each N."""

    faults = tuple(FAULTS)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        raise NotImplementedError

    def act(self, acknowledge: Acknowledge) -> None:
        raise NotImplementedError

    def check(self, outcome: Outcome) -> None:
        """Nothing acknowledged is lost, nothing is there in part."""
        raise NotImplementedError

    def check_again(self) -> None:
        """After another attempt, on a disk that works."""
        raise NotImplementedError


def content(policy_steps: int) -> dict[str, Any]:
    return {"weight": torch.full((50,), float(policy_steps)), "count": policy_steps}


def good_checkpoints(run: RunDirectory) -> list[int]:
    """Policy steps of the checkpoints; each must hold what was saved then, and nothing half-written may have a name."""
    found = list(checkpoint.newest_first(run.checkpoints))
    for path in found:
        wrong = checkpoint.damage(path)
        assert wrong is None, f"{path.name}: {wrong}"
    return sorted(int(path.name) for path in found)


class Checkpoints(Procedure):
    """save, prune, name_best in a run with older checkpoints, and with what a writer left when it was killed."""

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
        there = good_checkpoints(run)
        assert 192 in there, there
        assert 256 in there or "saved" not in outcome.acknowledged, there
        newest = checkpoint.newest_good(run.checkpoints)
        assert newest is not None
        assert int(newest.name) == there[-1]
        learning, _ = checkpoint.load(newest)
        assert learning["count"] == there[-1]
        assert torch.equal(learning["weight"], content(there[-1])["weight"])
        best = checkpoint.resolve(run, "best").name
        assert best == "256" if "best" in outcome.acknowledged else best in ("64", "256"), best

    def check_again(self) -> None:
        run = RunDirectory(self.folder)
        assert good_checkpoints(run) in ([64, 192, 256], [192, 256])
        assert checkpoint.resolve(run, "best").name == "256"
        assert not list(run.checkpoints.glob(".*")), list(run.checkpoints.glob(".*"))


class OverDamaged(Checkpoints):
    """Saving where a damaged checkpoint has the name already."""

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
            shutil.rmtree(path)  # it may stay so; the rest is as ever
        super().check(outcome)


class Events(Procedure):
    """Two events behind a torn line."""

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
    """The first event of a log in a folder that is not there yet."""

    def prepare(self) -> None:
        self.folder.mkdir(parents=True)

    def act(self, acknowledge: Acknowledge) -> None:
        EventLog(self.folder / "deep" / "events.jsonl").append("start", run_id="a")
        acknowledge("start")

    def check(self, outcome: Outcome) -> None:
        there = list(read_events(self.folder / "deep" / "events.jsonl"))
        assert len(there) <= 1
        assert there or not outcome.acknowledged

    def check_again(self) -> None:
        there = list(read_events(self.folder / "deep" / "events.jsonl"))
        assert {e["run_id"] for e in there} == {"a"}


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
        if not run.config.exists():  # a whole run whose last step was refused: `shepherd resume` takes it as it is
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
    """`RunTrainer.save` and `RunTrainer.evaluate` of a run that is being trained."""

    faults = ("EROFS from then on", "SIGKILL")

    def prepare(self) -> None:
        self.run = prepare(
            self.folder, total_steps=512, checkpoint__every=128, evaluation__every=128, evaluation__episodes=1
        )
        self.session = RunTrainer(self.run)
        self.digests: dict[int, str] = {}
        self.attempts = 0
        for _ in range(2):
            self.session.advance(lambda said: None)
            self.digests[self.session.policy_steps] = self.session.save()["digest"]
            self.session.evaluate()
        self.session.advance(lambda said: None)
        self.steps = [*self.digests, self.session.policy_steps]

    def act(self, acknowledge: Acknowledge) -> None:
        self.session.scores.pop(self.steps[-1], None)  # as it was before the last attempt
        self.session.owed = ["evaluate"]
        acknowledge(self.session.save()["digest"])
        self.session.evaluate()
        acknowledge("evaluated")

    def check(self, outcome: Outcome) -> None:
        there = good_checkpoints(self.run)
        assert there == self.steps or (there == self.steps[:2] and not outcome.acknowledged), there
        for policy_steps, digest in self.digests.items():
            assert checkpoint.manifest(self.run.checkpoints / str(policy_steps))["digest"] == digest
        newest = checkpoint.manifest(self.run.checkpoints / str(there[-1]))
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


def ending(act: Callable[[Acknowledge], None], acknowledge: Acknowledge) -> str:
    try:
        act(acknowledge)
    except (RunError, UserError) as refusal:
        return "refused" if len(str(refusal)) > 20 else f"not a sentence: {refusal}"
    except Exception:
        return traceback.format_exc()
    return "done"


def here(act: Callable[[Acknowledge], None]) -> Outcome:
    outcome = Outcome()
    outcome.ending = ending(act, outcome.acknowledged.append)
    outcome.operations = DISK.disarm()
    return outcome


def in_child(act: Callable[[Acknowledge], None]) -> Outcome:
    """Run a part of this process's future in a child, and hear of it over a pipe, as somebody outside would."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:

        def say(**fields: Any) -> None:
            os.write(writing, (json.dumps(fields) + "\n").encode())

        how = ending(act, lambda what: say(acknowledged=what))
        say(ending=how, operations=DISK.disarm())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = [json.loads(line) for line in pipe]
    os.waitpid(pid, 0)
    outcome = Outcome([s["acknowledged"] for s in said if "acknowledged" in s])
    if said and "ending" in said[-1]:
        outcome.ending, outcome.operations = said[-1]["ending"], said[-1]["operations"]
    return outcome


def sweep(procedure: Procedure, template: Path, fault: Fault) -> int:
    """The number of storage operations at each of which the fault was put."""
    attempt = in_child if fault.mode == KILL else here
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
            second = here(procedure.act)
            assert second.ending == "done", second.ending
            procedure.check_again()
        except Exception as error:
            raise AssertionError(f"operation {n}: {outcome}") from error
        if outcome.ending != "killed" and outcome.operations < n:
            assert outcome.ending == "done"
            return outcome.operations
    raise AssertionError("unreachable")


def main(folder: Path) -> None:
    gc.freeze()  # what is there stays; children copy less
    retry.PAUSES = ()  # each fault is looked at by itself
    store.code_version = functools.cache(code_version)  # four processes of git, each time
    for name, kind in PROCEDURES.items():
        live, template = folder / name / "live", folder / name / "template"
        procedure = kind(live)
        procedure.prepare()
        shutil.copytree(live, template)
        for label in procedure.faults:
            said: dict[str, Any] = {"procedure": name, "fault": label, "operations": 0, "failure": None}
            try:
                said["operations"] = sweep(procedure, template, FAULTS[label])
            except AssertionError:
                said["failure"] = traceback.format_exc()
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
