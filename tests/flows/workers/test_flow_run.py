"""Which run a flow run means: it follows from the flow run and its parameters, and from nothing beside them."""

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


def test_a_retried_flow_run_finds_its_run_and_changes_nothing_in_it() -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    again = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert again.path == run.path
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("overrides", [ACROBOT, [*ACROBOT, "run_dir=runs/mine"], [*ACROBOT, "log_root=elsewhere"]])
def test_a_retried_flow_run_whose_run_is_gone_makes_the_same_run_again(overrides: list[str]) -> None:
    run = _run_of("ppo", overrides, "", flow_run(1))
    shutil.rmtree(run.path)
    again = _run_of("ppo", overrides, "", flow_run(1))
    assert again.path == run.path
    assert learned_on(again) == ("Acrobot-v1", 7)


def test_a_run_made_on_a_worker_is_called_as_one_made_by_hand() -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert run.name == run.path.name == "ppo_Acrobot-v1_7_2026-11-22_12-00-00_00000001"


def test_the_time_zone_of_a_worker_does_not_move_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert _run_of("ppo", ACROBOT, "", flow_run(1)).path == run.path
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_worker_in_another_folder_finds_the_run_on_the_storage_that_both_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "shared"))
    run = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert run.path.is_relative_to(tmp_path / "shared")
    before = run.read_identity()["run_id"]
    (tmp_path / "second machine").mkdir()
    monkeypatch.chdir(tmp_path / "second machine")
    again = _run_of("ppo", ACROBOT, "", flow_run(1))
    assert (again.path, again.read_identity()["run_id"]) == (run.path, before)
    assert not list(Path.cwd().iterdir())


def test_two_flow_runs_of_one_second_do_not_meet() -> None:
    assert _run_of("ppo", ACROBOT, "", flow_run(1)).path != _run_of("ppo", ACROBOT, "", flow_run(2)).path


def test_the_run_of_another_flow_run_is_not_taken_over() -> None:
    overrides = [*ACROBOT, "run_dir=runs/mine"]
    _run_of("ppo", overrides, "", flow_run(1))
    with pytest.raises(UserError, match="this folder already contains a run"):
        _run_of("ppo", overrides, "", flow_run(2))


@pytest.mark.parametrize("overrides", [[], ["evaluation.final_episodes=200"], ["fabric.accelerator=cuda"]])
def test_a_run_to_be_continued_that_is_gone_is_not_replaced_by_another(overrides: list[str]) -> None:
    with pytest.raises(UserError, match=r"^run_dir=runs/acro: no run here to resume; "):
        _run_of("ppo", overrides, "runs/acro", flow_run(1))
    assert not Path("runs").exists()


def test_overrides_that_made_a_run_are_not_changes_of_it_at_a_retry() -> None:
    overrides = ["exp=ppo", *ACROBOT]
    run = _run_of("ppo", overrides, "runs/acro", flow_run(1))
    assert _run_of("ppo", overrides, "runs/acro", flow_run(1)).path == run.path
    with pytest.raises(UserError, match="exp=ppo: config files can be chosen only for a new run"):
        _run_of("ppo", overrides, "runs/acro", flow_run(2))


@pytest.mark.parametrize(("every", "said"), [(0.0, ["comparing: 37 of 100 episodes"]), (1e9, [])])
def test_long_work_says_in_the_log_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every: float, said: list[str]
) -> None:
    monkeypatch.setattr(around, "WORK_EVERY", every)
    with caplog.at_level(logging.INFO), around.supervise(logging.getLogger("tests.flow_run")):
        episode_reporter("comparing")(37, 100)
    assert [record.message for record in caplog.records if record.name == "tests.flow_run"] == said


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The lines of a flow run's log, on a worker."""
    records: list[logging.LogRecord] = []
    logger = logging.Logger("prefect.flow_runs")
    logger.addFilter(lambda record: records.append(record) or False)
    monkeypatch.setattr(around, "on_worker", lambda: True)
    monkeypatch.setattr(around, "get_run_logger", lambda: logger)
    return records


def test_a_worker_that_would_keep_runs_in_pulled_code_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[logging.LogRecord]
) -> None:
    """The clone goes with its flow run. In the worker's own folder, or with a root that machines share, all is well."""
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


def test_what_went_wrong_in_a_run_is_told_in_its_sentence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect puts "Flow run encountered an exception: RunError:" before it, and a task's words into the log."""
    monkeypatch.setattr(around, "on_worker", lambda: True)
    monkeypatch.setattr(around, "_refuse_passing_folder", lambda: None)

    def body() -> None:
        raise RunError("env 3: obs has NaN at step 7")

    state = around.shorten_failures(body)()
    assert isinstance(state, State)
    assert (state.name, state.message) == ("Failed", "env 3: obs has NaN at step 7")
    said = "Finished in state Failed('Task run encountered an exception RunError: env 3: obs has NaN at step 7')"
    with around.supervise(logging.getLogger("tests.flow_run")):
        record = logging.makeLogRecord({"msg": said})
        assert logging.getLogger("prefect.task_runs").filter(record)
    assert record.getMessage() == "Finished in state Failed('env 3: obs has NaN at step 7')"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Crash detected! Execution was aborted by a termination signal.", False),
        ("Finished in state Crashed('Execution was aborted by a termination signal.')", False),
        ("Finished in state Running()", False),
        ("Crash detected! Execution was aborted by Python interpreter exit.", True),
        ("saved at policy step 21,504", True),
    ],
)
def test_supervise_logs_no_crash_of_a_cancelled_run(said: str, shown: bool) -> None:
    with around.supervise(logging.getLogger("tests.flow_run")):
        for logger in ("prefect.task_runs", "prefect.flow_runs"):
            assert bool(logging.getLogger(logger).filter(logging.makeLogRecord({"msg": said}))) == shown


def test_leading_names_a_flow_run_whose_overrides_are_refused(
    monkeypatch: pytest.MonkeyPatch, log: list[logging.LogRecord]
) -> None:
    made, names = flow_run(1), []
    monkeypatch.setattr(around, "call", lambda name, *labels: names.append(name))
    monkeypatch.setattr(around.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=made))
    for run_dir, name in (("", "train ppo"), ("runs/mine", "mine")):
        with pytest.raises(UserError), around.managed_run("ppo", ["algo.total_step=9"], run_dir):
            pytest.fail("the override was taken")
        assert names.pop() == f"{name} 2026-11-22_12-00-00_00000001"
    made.parent_task_run_id = UUID(int=2)  # a sweep has named it by its trial
    with pytest.raises(UserError), around.managed_run("ppo", ["algo.total_step=9"], ""):
        pytest.fail("the override was taken")
    assert names == []


def test_a_flow_run_has_each_tag_once_at_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    made = flow_run(1)
    made.tags = ["first", "ppo"]  # a sweep's, and the deployment's

    @contextlib.contextmanager
    def client(**_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(update_flow_run=lambda _, name, tags: setattr(made, "tags", tags))

    monkeypatch.setattr(around, "get_client", client)
    monkeypatch.setattr(around.FlowRunContext, "get", lambda: SimpleNamespace(flow_run=made))
    for _ in range(2):
        around.call("trial 0", "ppo", "CartPole-v1", "seed=1")
        assert made.tags == ["first", "ppo", "CartPole-v1", "seed=1"]


@pytest.mark.parametrize("by_worker", [True, False])
def test_a_flow_that_a_killed_worker_had_started_ends_though_nobody_is_above_it(
    monkeypatch: pytest.MonkeyPatch, by_worker: bool
) -> None:
    """A flow takes seconds to start, in which its worker may be killed; it would train on, watched by nobody."""
    told: list[int] = []
    monkeypatch.setattr(parents, "_above", lambda programs: [])
    monkeypatch.setattr(parents, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(parents.os, "kill", lambda pid, number: told.append(number))
    if by_worker:
        monkeypatch.setenv(parents.WORKER, "1")
    with around.supervise(logging.getLogger("tests.flow_run")):
        threads = [thread for thread in threading.enumerate() if "_leave_with" in thread.name]
        for thread in threads:
            thread.join(5.0 if by_worker else 0.1)
    assert (told, len(threads)) == ([signal.SIGTERM] if by_worker else [], 1)


def test_mirror_notes_nothing_of_a_refused_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setenv(around.WARM, str(tmp_path))  # mirrors from the beginning
    monkeypatch.setattr(around, "mirror_in_background", lambda run, every=30.0: calls.append("asked"))
    run = synthetic_run(tmp_path / "run", "refused")
    run.card.unlink(missing_ok=True)
    before = run.events.read_bytes()
    with pytest.raises(UserError), around._mirror(run, flow_run(1), None):
        raise UserError("env.id=Mine-v0: step raised ValueError")
    assert calls == [] and b"failed" not in run.events.read_bytes().removeprefix(before)


@pytest.mark.parametrize(("brief", "asked"), [(0.0, 2), (1e9, 0)], ids=["long", "brief"])
def test_a_run_without_a_server_is_mirrored_as_it_goes_where_it_is_not_brief(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: float, asked: int
) -> None:
    monkeypatch.delenv(around.WARM, raising=False)
    calls: list[str] = []
    monkeypatch.setattr(around, "BRIEF", brief)
    monkeypatch.setattr(around, "mirror_in_background", lambda run, every=30.0: calls.append("asked"))
    monkeypatch.setattr(around, "finish_mirror", lambda run: calls.append("finished"))
    run = synthetic_run(tmp_path / "run", "brief")
    with around._mirror(run, None, None):
        for kind in ("progress", "checkpoint", "work"):
            emit(kind, {})
    assert calls == ["asked"] * asked + ["finished"]
