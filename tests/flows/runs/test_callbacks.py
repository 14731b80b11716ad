"""Callbacks of runs that are trained by a trainer process: failures, the end of the run, kills, and several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import main
from flows.runs.listeners import subscribe
from flows.runs.pruning import prune
from flows.runs.trainer import trainer_for
from flows.runs.trainer_process import TrainerProcess
from flows.stages.summary import summarise
from flows.stages.train import train
from rlcore.errors import RunError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import last_event, read_events
from tests.processes import NO_STORE, TINY, digest_of, end, kill_all, orphans, start
from tests.runs import prepare
from tests.soaking import heavy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]
PLUGIN = "tests.probes.callbacks"
SCHEDULE: dict[str, Any] = {"total_steps": 256, "checkpoint__every": 64, "evaluation__every": 128}


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", PLUGIN)


def run_with(path: Path, name: str, **arguments: Any) -> RunDirectory:
    keys = SCHEDULE | {key: arguments.pop(key) for key in [*arguments] if "__" in key}
    return prepare(path, callbacks=[{"_target_": f"{PLUGIN}:{name}", **arguments}], **keys)


def states(run: RunDirectory) -> dict[str, Any]:
    """Return the attributes of the callback in the newest checkpoint."""
    _, bookkeeping = checkpoint.load(checkpoint.resolve(run, "latest"))
    (state,) = bookkeeping["callbacks"]["states"].values()
    return state


@pytest.mark.parametrize(
    ("method", "saved"),
    [
        ("on_iteration", 64),
        pytest.param("on_checkpoint", 128, marks=heavy),
        pytest.param("on_evaluation", 128, marks=heavy),
        pytest.param("on_end", 256, marks=heavy),
    ],
)
def test_failure_of_callback_saves_training(method: str, saved: int, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "Failing", method=method, checkpoint__every=128)
    with pytest.raises(RunError) as caught:
        train(run)
    assert str(caught.value) == (
        f"callback {PLUGIN}:Failing: {method} raised KeyError: 'no entry 1'; training is saved at policy step "
        f"{saved}, the traceback is in {run.log}"
    )
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None and newest.name == str(saved)
    text = run.log.read_text()
    assert "Traceback" in text and 'raise KeyError(f"no entry' in text


def test_callback_ends_run_and_is_named_in_summary(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "Recorder", stop_after=1)
    train(run)
    trainer_for(run).stop()
    reason = f"callback {PLUGIN}:Recorder: 1 calls"
    results = summarise(run)
    assert (results["status"], results["stopped_by"], results["policy_steps"]) == ("stopped_early", reason, 64)
    logged = [e for e in read_events(run.events) if e["kind"] == "callback"]
    assert [(e["method"], e["values"]) for e in logged] == [
        ("on_checkpoint", {"Mine/checkpoint": 1}),
        ("on_end", {"Mine/end": 1}),
    ]


def test_metrics_that_nobody_logs_are_reported_by_parent_process(tmp_path: Path) -> None:
    stop = [{"upper_bound": {"metric": "Mine/iterations", "value": 9}}]
    unknown = {"stop": stop, "env__info_keys": ["nothing"], "metric__aggregator__metrics": {"Loss/polic": "max"}}
    keys = SCHEDULE | unknown
    run = prepare(tmp_path / "run", callbacks=[f"{PLUGIN}:Recorder"], **keys)
    said: list[str] = []
    with subscribe(lambda kind, facts: said.append(str(facts.get("doing")))):
        train(run)
        trainer_for(run).stop()
    for first in (
        "stop: neither the training nor a callback has logged Mine/iterations yet, so its condition cannot hold; did",
        "env.info_keys: info never had nothing in the first",
        "metric.aggregator.metrics: this algorithm does not log 'Loss/polic' (did you mean",
    ):
        assert sum(sentence.startswith(first) for sentence in said) == 1, said


@heavy
def test_pruned_run_calls_on_end(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "Recorder")
    prune(run, "test")
    train(run)
    trainer_for(run).stop()
    ended = [e for e in read_events(run.events) if e["kind"] in ("callback", "end")]
    assert [(e["kind"], e["policy_steps"]) for e in ended[-2:]] == [("callback", 64), ("end", 64)]
    assert ended[-2]["method"] == "on_end" and ended[-1]["status"] == "pruned"


@heavy
@pytest.mark.parametrize("stop_after", [None, 3])
def test_killed_run_with_callback_resumes_to_same_bits(stop_after: int | None, tmp_path: Path) -> None:
    whole = run_with(tmp_path / "whole" / "run", "Recorder", stop_after=stop_after)
    train(whole)
    trainer_for(whole).stop()
    run = run_with(tmp_path / "cut" / "run", "Recorder", stop_after=stop_after)
    trainer = TrainerProcess(run)
    for _ in range(2):
        boundary = trainer.advance()
        trainer.checkpoint()
    assert "evaluate" in boundary.due
    trainer.process.kill()
    trainer.stop()
    train(run)
    trainer_for(run).stop()
    assert digest_of(run) == digest_of(whole)
    calls = [state["calls"] for state in (states(run), states(whole))]
    # Of the calls at the last step, the checkpoint contains only that of `on_iteration`.
    assert calls[0] == calls[1] and len(calls[0]) == (8 if stop_after is None else 6)
    draws = [[fact["draws"] for fact in state["facts"]] for state in (states(run), states(whole))]
    assert draws[0] == draws[1]
    ends = [last_event(read_events(each.events), "end") for each in (run, whole)]
    assert ends[0] is not None and ends[1] is not None and ends[0]["reason"] == ends[1]["reason"]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)


@heavy
@pytest.mark.parametrize("kind", ["stop", "failure"])
def test_callback_ends_both_ranks(kind: str, home: Path) -> None:
    arguments = {"name": "Recorder", "stop_after": 3} if kind == "stop" else {"name": "Failing", "at": 3}
    arguments |= {} if kind == "stop" else {"method": "on_iteration"}
    run = _two_ranks(home, arguments)
    code, output = end(start(home, "stage", "train", "run", **NO_STORE, SHEPHERD_PLUGINS=PLUGIN))
    assert not orphans(home)
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None and newest.name == "384"  # three iterations of 2 ranks with 64 rows each
    if kind == "stop":
        assert code == 0, output
        ended = last_event(read_events(run.events), "end")
        assert ended is not None and ended["reason"] == f"callback {PLUGIN}:Recorder: 3 calls"
    else:
        assert (
            code == 1 and "on_iteration raised KeyError: 'no entry 3'; training is saved at policy step 384" in output
        )


def _two_ranks(home: Path, arguments: dict[str, Any]) -> RunDirectory:
    name = arguments.pop("name")
    callbacks = [{"_target_": f"{PLUGIN}:{name}", **arguments}]
    keys: dict[str, Any] = {"total_steps": 1024, "checkpoint__every": 1024, "evaluation__every": 1024}
    return prepare(home / "run", callbacks=callbacks, fabric__devices=2, **keys)


@pytest.mark.parametrize(
    ("callback", "message"),
    [("Nothing", "has no Nothing"), ("Broken", "missing a required argument: 'number'")],
)
def test_bad_callback_is_refused_before_run_exists(
    callback: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = [*TINY, f"plugins=[{PLUGIN}]", f"callbacks=[{PLUGIN}:{callback}]", f"run_dir={run}"]
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err and not run.exists()
