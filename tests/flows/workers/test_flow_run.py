"""The run of a flow run depends only on the flow run and its parameters; tags, names and messages of flow runs."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from flows.process import parents
from flows.runs.listeners import emit, episode_reporter
from flows.workers import flow_run as around
from flows.workers.flow_run import _run_of
from rlcore.errors import RunError, UserError
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.history import history
from tests.flows.synthetic_runs import synthetic_run

from prefect.client.schemas.objects import FlowRun, State  # isort: skip

ACROBOT = ["env.id=Acrobot-v1", "seed=7"]


def flow_run(number: int) -> FlowRun:
    made = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
    return FlowRun.model_validate({"id": UUID(int=number), "flow_id": UUID(int=0), "created": made})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def learned_on(run: RunDirectory) -> tuple[str, int]:
    config = config_of(run)
    return config.env.id, config.seed


def test_run_of_retry_finds_unchanged_run() -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    again = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert again.path == run.path
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("overrides", [ACROBOT, [*ACROBOT, "run_dir=runs/mine"], [*ACROBOT, "log_root=elsewhere"]])
def test_run_of_retry_recreates_deleted_run(overrides: list[str]) -> None:
    run = _run_of("ppo", overrides, "", flow_run(1))
    shutil.rmtree(run.path)
    again = _run_of("ppo", overrides, "", flow_run(1))
    assert again.path == run.path
    assert learned_on(again) == ("Acrobot-v1", 7)


def test_run_of_names_run_like_train_command() -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert run.name == run.path.name == "ppo_Acrobot-v1_7_2026-11-22_12-00-00_00000001"


def test_run_of_ignores_time_zone_of_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert _run_of("ppo", ACROBOT, "", flow_run(1)).path == run.path
    finally:
        monkeypatch.undo()
        time.tzset()


def test_run_of_finds_run_on_shared_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "shared"))
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert run.path.is_relative_to(tmp_path / "shared")
    before = run.read_identity()["run_id"]
    (tmp_path / "second machine").mkdir()
    monkeypatch.chdir(tmp_path / "second machine")
    again = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert (again.path, again.read_identity()["run_id"]) == (run.path, before)
    assert not list(Path.cwd().iterdir())


def test_run_of_separates_flow_runs_of_same_second() -> None:
    assert _run_of("ppo", ACROBOT, "", flow_run(1)).path != _run_of("ppo", ACROBOT, "", flow_run(2)).path


def test_run_of_refuses_run_of_other_flow_run() -> None:
    overrides = [*ACROBOT, "run_dir=runs/mine"]
    _run_of("ppo", overrides, "", flow_run(1))
    with pytest.raises(UserError, match="this folder already contains a run"):
        _run_of("ppo", overrides, "", flow_run(2))


@pytest.mark.parametrize("overrides", [[], ["evaluation.final_episodes=200"], ["fabric.accelerator=cuda"]])
def test_run_of_refuses_missing_run_to_resume(overrides: list[str]) -> None:
    with pytest.raises(UserError, match=r"^run_dir=runs/acro: no run here to resume; "):
        _run_of("ppo", overrides, "runs/acro", flow_run(1))
    assert not Path("runs").exists()


def test_run_of_retry_accepts_original_overrides() -> None:
    overrides = ["exp=ppo", *ACROBOT]
    run = _run_of("ppo", overrides, "runs/acro", flow_run(1))
    assert _run_of("ppo", overrides, "runs/acro", flow_run(1)).path == run.path
    with pytest.raises(UserError, match="exp=ppo: config files can be chosen only for a new run"):
        _run_of("ppo", overrides, "runs/acro", flow_run(2))


@pytest.mark.parametrize(("every", "expected"), [(0.0, ["comparing: 37 of 100 episodes"]), (1e9, [])])
def test_supervise_logs_progress_of_long_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every: float, expected: list[str]
) -> None:
    monkeypatch.setattr(around, "WORK_EVERY", every)
    with caplog.at_level(logging.INFO), around.supervise(logging.getLogger("tests.flow_run")):
        episode_reporter("comparing")(37, 100)
    assert [record.message for record in caplog.records if record.name == "tests.flow_run"] == expected


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """Log records of a flow run on a worker."""
    records: list[logging.LogRecord] = []
    logger = logging.Logger("prefect.flow_runs")
    logger.addFilter(lambda record: records.append(record) or False)
    monkeypatch.setattr(around, "on_worker", lambda: True)
    monkeypatch.setattr(around, "get_run_logger", lambda: logger)
    return records


def test_shorten_failures_refuses_runs_in_cloned_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[logging.LogRecord]
) -> None:
    """The clone is deleted after its flow run. The worker's own folder and a shared run root are allowed."""
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.delenv("SHEPHERD_RUN_ROOT", raising=False)
    flow = around.shorten_failures(lambda: {"result": "trained"})
    assert flow().is_completed()
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    refused = flow()
    assert refused.is_failed() and refused.message.startswith(
        "SHEPHERD_RUN_ROOT is not set in the environment of this worker"
    )
    assert [(record.levelname, record.getMessage()) for record in log] == [("ERROR", refused.message)]
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "shared"))
    assert flow().is_completed()


def test_shorten_failures_keeps_only_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect prepends "Flow run encountered an exception: RunError:", and logs the message of the task."""
    monkeypatch.setattr(around, "on_worker", lambda: True)
    monkeypatch.setattr(around, "_refuse_passing_folder", lambda: None)

    def body() -> None:
        raise RunError("env 3: obs has NaN at step 7")

    state = around.shorten_failures(body)()
    assert isinstance(state, State)
    assert (state.name, state.message) == ("Failed", "env 3: obs has NaN at step 7")
    text = "Finished in state Failed('Task run encountered an exception RunError: env 3: obs has NaN at step 7')"
    with around.supervise(logging.getLogger("tests.flow_run")):
        record = logging.makeLogRecord({"msg": text})
        assert logging.getLogger("prefect.task_runs").filter(record)
    assert record.getMessage() == "Finished in state Failed('env 3: obs has NaN at step 7')"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Crash detected! Execution was aborted by a termination signal.", False),
        ("Finished in state Crashed('Execution was aborted by a termination signal.')", False),
        ("Finished in state Running()", False),
        ("Crash detected! Execution was aborted by Python interpreter exit.", True),
        ("saved at policy step 21,504", True),
    ],
)
def test_supervise_logs_no_crash_of_cancelled_run(text: str, shown: bool) -> None:
    with around.supervise(logging.getLogger("tests.flow_run")):
        for logger in ("prefect.task_runs", "prefect.flow_runs"):
            assert bool(logging.getLogger(logger).filter(logging.makeLogRecord({"msg": text}))) == shown


def test_managed_run_names_flow_run_with_refused_overrides(
    monkeypatch: pytest.MonkeyPatch, log: list[logging.LogRecord]
) -> None:
    made, names = flow_run(1), []
    monkeypatch.setattr(around, "call", lambda name, *labels: names.append(name))
    monkeypatch.setattr(around.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=made))
    for run_dir, name in (("", "train ppo"), ("runs/mine", "mine")):
        with pytest.raises(UserError), around.managed_run("ppo", ["algo.total_step=9"], run_dir):
            pytest.fail("the override was taken")
        assert names.pop() == f"{name} 2026-11-22_12-00-00_00000001"
    made.parent_task_run_id = UUID(int=2)  # a sweep has already named it after its trial
    with pytest.raises(UserError), around.managed_run("ppo", ["algo.total_step=9"], ""):
        pytest.fail("the override was taken")
    assert names == []


def test_call_sets_each_tag_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = flow_run(1)
    made.tags = ["first", "ppo"]  # from the sweep and from the deployment

    @contextlib.contextmanager
    def client(**_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(update_flow_run=lambda _, name, tags: setattr(made, "tags", tags))

    monkeypatch.setattr(around, "get_client", client)
    monkeypatch.setattr(around.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=made))
    for _ in range(2):
        around.call("trial 0", "ppo", "CartPole-v1", "seed=1")
        assert made.tags == ["first", "ppo", "CartPole-v1", "seed=1"]


@pytest.mark.parametrize("by_worker", [True, False])
def test_supervise_ends_flow_of_killed_worker(monkeypatch: pytest.MonkeyPatch, by_worker: bool) -> None:
    """A flow takes seconds to start; if its worker is killed meanwhile, it would train without supervision."""
    signals: list[int] = []
    monkeypatch.setattr(parents, "_above", lambda programs: [])
    monkeypatch.setattr(parents, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(parents.os, "kill", lambda pid, number: signals.append(number))
    if by_worker:
        monkeypatch.setenv(parents.WORKER, "1")
    with around.supervise(logging.getLogger("tests.flow_run")):
        threads = [thread for thread in threading.enumerate() if "_leave_with" in thread.name]
        for thread in threads:
            thread.join(5.0 if by_worker else 0.1)
    assert (signals, len(threads)) == ([signal.SIGTERM] if by_worker else [], 1)


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_mirror_ignores_refused_run_unless_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setenv(around.WARM, str(tmp_path))  # mirrors from the start
    monkeypatch.setattr(around, "mirror_in_background", lambda run, every=30.0, last=False: calls.append("asked"))
    monkeypatch.setattr(around, "note_start", lambda run: None)
    run = synthetic_run(tmp_path / "run", "refused")
    run.card.unlink()
    if not resumed:
        run.events.unlink()
    with pytest.raises(UserError), around._mirror(run, flow_run(1), None):
        raise UserError("env.id=Mine-v0: step raised ValueError")
    end = history(run.events).last("end")
    assert bool(calls) == resumed
    # Without the end event, `shepherd reap` and `shepherd compare` would report that the run's process has died.
    assert (end and (end["status"], end["reason"])) == (
        ("failed", "env.id=Mine-v0: step raised ValueError") if resumed else None
    )


@pytest.mark.parametrize(("brief", "asked"), [(0.0, 2), (1e9, 0)], ids=["long", "brief"])
def test_mirror_in_background_only_for_long_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: float, asked: int
) -> None:
    monkeypatch.delenv(around.WARM, raising=False)
    calls: list[str] = []
    monkeypatch.setattr(around, "BRIEF", brief)
    monkeypatch.setattr(around, "mirror_in_background", lambda run, every=30.0, last=False: calls.append("asked"))
    monkeypatch.setattr(around, "finish_mirror", lambda run: calls.append("finished"))
    run = synthetic_run(tmp_path / "run", "brief")
    with around._mirror(run, None, None):
        for kind in ("progress", "checkpoint", "work"):
            emit(kind, {})
    assert calls == ["asked"] * asked + ["finished"]
