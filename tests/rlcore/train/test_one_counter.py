"""Policy steps are the one counter: of checkpoints, evaluations, points and ends; runs of earlier versions go on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from flows.runs.trainer import current_step, resumes
from flows.stages.evaluate import evaluate
from flows.stages.summary import summarise
from rlcore.evaluation.policy import load_policy
from rlcore.store import checkpoint, compare
from rlcore.store.checkpoint.sealed_json import seal, unseal
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.session import Session
from tests.runs import prepare

SETTINGS: dict[str, Any] = {
    "total_steps": 512,
    "checkpoint__every": 64,
    "checkpoint__keep_last": None,
    "evaluation__every": 128,
    "metric__log_every": 128,
}


def train(run: RunDirectory, until: int = 512) -> str:
    """Train on, with what is due at the boundaries; the digest of the last checkpoint."""
    session, told, digest = Session(run), [], ""
    while session.policy_steps < until or session.owed:
        at = session.advance(told.append)
        if "checkpoint" in at.due:
            digest = session.save()["digest"]
        if "evaluate" in at.due:
            session.evaluate()
    session.close()
    assert all("env_steps" not in said for said in told)
    return digest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, str]:
    run = prepare(tmp_path_factory.mktemp("runs") / "whole", **SETTINGS)
    return run, train(run)


def test_evaluations_leave_the_scheduled_checkpoints(tmp_path: Path) -> None:
    settings = {"checkpoint__every": 128, "checkpoint__keep_last": 3, "evaluation__every": 64}
    run = prepare(tmp_path / "run", **(SETTINGS | settings))
    train(run)
    there = {path.name for path in checkpoint.newest_first(run.checkpoints)}
    assert {"256", "384", "512"} <= there and len(there) <= 4  # and one that was the best when 512 was written


def make_earlier(run: RunDirectory) -> dict[int, int]:
    """Have a run look as versions wrote it that called checkpoints by env steps; {policy steps: env steps}."""
    events = list(read_events(run.events))
    taken = {e["policy_steps"]: e["env_steps"] for e in events if "env_steps" in e}
    for event in events:
        if event["kind"] != "checkpoint":
            event.pop("policy_steps", None)
        elif "path" in event:
            event["path"] = f"checkpoints/{event['env_steps']}"
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    for path in list(checkpoint.newest_first(run.checkpoints)):
        manifest = unseal((path / "manifest.json").read_bytes())
        bookkeeping = json.loads((path / "bookkeeping/state.json").read_bytes())
        assert bookkeeping.pop("env_steps") == taken[int(path.name)]
        bookkeeping["scores"] = {str(taken[int(at)]): score for at, score in bookkeeping["scores"].items()}
        content = json.dumps(bookkeeping).encode()
        (path / "bookkeeping/state.json").write_bytes(content)
        entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files = manifest["files"] | {"bookkeeping/state.json": entry}
        name = taken[manifest.pop("policy_steps")]
        (path / "manifest.json").write_bytes(seal(manifest | {"env_steps": name, "files": files}))
        path.rename(path.with_name(str(name)))
    names = unseal(run.names.read_bytes())
    run.names.write_bytes(seal({which: str(taken[int(name)]) for which, name in names.items()}))
    return taken


def test_everything_of_a_run_is_called_by_policy_steps(whole: tuple[RunDirectory, str]) -> None:
    run, _ = whole
    events = list(read_events(run.events))
    moments = {kind: [e["policy_steps"] for e in events if e["kind"] == kind] for kind in ("metrics", "evaluation")}
    assert moments == {"metrics": [128, 256, 384, 512], "evaluation": [128, 256, 384, 512]}
    assert [path.name for path in checkpoint.newest_first(run.checkpoints)] == [str(at) for at in range(512, 0, -64)]
    assert all(e["env_steps"] < e["policy_steps"] for e in events if e["policy_steps"] > 64)  # rows that only reset
    assert (summarise(run)["policy_steps"], summarise(run)["env_steps"]) == (512, events[-1]["env_steps"])


@pytest.mark.parametrize("owes", [False, True], ids=["judged", "owes its evaluation"])
def test_a_run_of_an_earlier_version_goes_on_to_the_same_bits(
    tmp_path: Path, whole: tuple[RunDirectory, str], owes: bool
) -> None:
    run = prepare(tmp_path / "run", **SETTINGS, early_stop__patience=100)
    train(run, 256)
    if owes:
        lines = run.events.read_text().splitlines(keepends=True)
        run.events.write_text("".join(line for line in lines if '"evaluation"' not in line or "256" not in line))
        bookkeeping = run.checkpoints / "256"
        assert json.loads((bookkeeping / "bookkeeping/state.json").read_bytes())["owed"] == ["evaluate"]
    taken = make_earlier(run)
    assert taken[256] < 256 and (run.checkpoints / str(taken[256])).exists()
    session = Session(run)
    assert sorted(session.scores) == ([128] if owes else [128, 256])
    assert session.owed == (["evaluate"] if owes else [])
    session.close()
    train(run)
    last = checkpoint.resolve(run)
    assert last.name == "512"
    assert list(compare.differences(last, checkpoint.resolve(whole[0]))) == []
    assert [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "evaluation"] == [128, 256, 384, 512]


def test_checkpoints_of_an_earlier_version_are_found_judged_and_compared(
    tmp_path: Path, whole: tuple[RunDirectory, str]
) -> None:
    run = prepare(tmp_path / "run", **SETTINGS)
    train(run, 256)
    best = int(checkpoint.resolve(run, "best").name)
    taken = make_earlier(run)
    assert checkpoint.resolve(run, "best").name == str(taken[best])
    run.names.unlink()
    assert checkpoint.resolve(run, "best").name == str(taken[best])  # by the log
    older = checkpoint.resolve(run, taken[256])
    assert checkpoint.manifest(older)["policy_steps"] == checkpoint.policy_steps(older) == 256
    assert (resumes(run), current_step(run)) == ("from its checkpoint at 256 policy steps", 256)
    assert load_policy(older).description["policy_steps"] == 256
    assert (summarise(run)["policy_steps"], summarise(run)["env_steps"]) == (256, taken[256])
    assert compare.common(run.path, whole[0].path) == (older, whole[0].checkpoints / "256")
    judged = evaluate(run, final=True)
    assert judged is not None and judged["policy_steps"] in (128, 256)
    assert (run.evaluations / f"{judged['policy_steps']}.json").exists()
