"""Parent run of a sweep in MLflow: status, metrics, and its trials as child runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config.compose import compose
from flows.settings import tracking_uri
from flows.sweeps import mlflow_parent
from flows.sweeps.folder import SweepFolder
from flows.sweeps.mlflow_parent import mirror_sweep, update_parent
from flows.tracking import mlflow_run
from flows.tracking.mlflow_store import connect
from flows.tracking.mlflow_sweep import PARENT, run_of_sweep
from flows.tracking.news import NewEvents
from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from tests.flows.sweeps.fake import make_sweep
from tests.flows.synthetic_runs import synthetic_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("home"),
    # MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]
TREE = plain(compose(["exp=ppo"])[0])
FOUND = {"trials": [{"number": 0, "state": "complete", "value": 3.0}, {"number": 1, "state": "fail", "value": None}]}


def sweep(folder: Path, name: str) -> SweepFolder:
    return make_sweep(folder, name, "sweep.trials=2")[0]


def run_inside(folder: SweepFolder, inside: Callable[[], Any]) -> None:
    """Call `inside` within `update_parent`, after the parent run is created."""
    with update_parent(folder, TREE):
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "mlflow"] or [None]
        if thread:
            thread.join()
        inside()


def parent_of(folder: SweepFolder) -> Any:
    """Return the sweep's run in MLflow."""
    return run_of_sweep(connect(tracking_uri()), folder.id)


def trial(folder: SweepFolder, place: str = "trial_0000") -> Any:
    """Return the MLflow run of a trial, created like by the process that copies its event log to MLflow."""
    run = RunDirectory(folder.runs / place / "seed_1")
    if not run.config.exists():
        synthetic_run(run.path, f"{folder.id}-{place}", group=folder.name)
    run_id = mlflow_run.update_mlflow(run, NewEvents(run).read())
    return connect(tracking_uri()).get_run(run_id)


def test_trial_has_parent_and_number_from_start(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "begun")

    def inside() -> None:
        assert (parent_of(folder).info.status, parent_of(folder).info.run_name) == ("RUNNING", "sweep begun")
        for place, number in (("trial_0000", "0"), ("trial_0012", "12"), ("winner_0012", "winner_0012")):
            tags = trial(folder, place).data.tags
            assert (tags[PARENT], tags["trial"]) == (parent_of(folder).info.run_id, number)

    run_inside(folder, inside)


def test_sweeps_of_same_name_have_separate_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users share an MLflow server."""
    mine = sweep(tmp_path / "mine", "first")
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "theirs"))
    theirs = sweep(tmp_path / "theirs", "first")
    assert mine.path != theirs.path and mine.id != theirs.id
    for folder in (mine, theirs):
        run_inside(folder, lambda folder=folder: trial(folder))
        mirror_sweep(folder, TREE, FOUND, {}, "note")
    parents = {parent_of(folder).info.run_id for folder in (mine, theirs)}
    assert {trial(folder).data.tags[PARENT] for folder in (mine, theirs)} == parents
    assert len(parents) == 2


@pytest.mark.parametrize(
    ("raised", "status"), [(KeyboardInterrupt(), "KILLED"), (RuntimeError("no space"), "FAILED"), (None, "FINISHED")]
)
def test_parent_status_follows_sweep(tmp_path: Path, raised: BaseException | None, status: str) -> None:
    folder = sweep(tmp_path, f"ends_{status.lower()}")

    def inside() -> None:
        if raised:
            raise raised
        mirror_sweep(folder, TREE, FOUND, {"trials": 2}, "note")

    if raised:
        with pytest.raises(type(raised)):
            run_inside(folder, inside)
    else:
        run_inside(folder, inside)
    ended = parent_of(folder)
    assert ended.info.status == status
    seen: list[str] = []
    run_inside(folder, lambda: seen.append(parent_of(folder).info.status))
    assert seen == ["RUNNING"]
    assert parent_of(folder).info.run_id == ended.info.run_id


def test_mirror_sweep_is_idempotent(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "twice")
    for _ in range(2):
        mirror_sweep(folder, TREE, FOUND, {"trials": 2}, "note")
    client = connect(tracking_uri())
    found = parent_of(folder)
    assert [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, "best")] == [(0, 3.0)]
    assert found.data.params == {"trials": "2"}


def test_update_parent_adopts_earlier_trial(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "late")
    assert PARENT not in trial(folder).data.tags
    run_inside(folder, lambda: None)
    assert trial(folder).data.tags[PARENT] == parent_of(folder).info.run_id


def test_update_parent_tolerates_unreachable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////dev/null/mlflow.db")
    done: list[bool] = []
    run_inside(sweep(tmp_path, "away"), lambda: done.append(True))
    assert done
    with pytest.raises(UserError, match="cannot be created"):
        mlflow_parent.reachable_store(tracking_uri())
