"""A sweep in MLflow: there and running from its beginning, killed where it is broken off, its trials below it alone."""

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
from tests.flows.sweeps.fake import made
from tests.flows.synthetic_runs import synthetic_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("home"),
    # MLflow warns about itself while it is imported and used; of our own code a warning is an error still.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]
TREE = plain(compose(["exp=ppo"])[0])
FOUND = {"trials": [{"number": 0, "state": "complete", "value": 3.0}, {"number": 1, "state": "fail", "value": None}]}


def sweep(folder: Path, name: str) -> SweepFolder:
    return made(folder, name, "sweep.trials=2")[0]


def at_once(folder: SweepFolder, inside: Callable[[], Any]) -> None:
    """Inside `show`, once the run is made."""
    with update_parent(folder, TREE):
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "mlflow"] or [None]
        if thread:
            thread.join()
        inside()


def of(folder: SweepFolder) -> Any:
    """The sweep's run in MLflow."""
    return run_of_sweep(connect(tracking_uri()), folder.id)


def trial(folder: SweepFolder, place: str = "trial_0000") -> Any:
    """The run in MLflow of one of the sweep's, as its mirror makes it."""
    run = RunDirectory(folder.runs / place / "seed_1")
    if not run.config.exists():
        synthetic_run(run.path, f"{folder.id}-{place}", group=folder.name)
    made = mlflow_run.update_mlflow(run, NewEvents(run).read())
    return connect(tracking_uri()).get_run(made)


def test_trial_has_parent_and_number_from_start(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "begun")

    def inside() -> None:
        assert (of(folder).info.status, of(folder).info.run_name) == ("RUNNING", "sweep begun")
        for place, number in (("trial_0000", "0"), ("trial_0012", "12"), ("winner_0012", "winner_0012")):
            tags = trial(folder, place).data.tags
            assert (tags[PARENT], tags["trial"]) == (of(folder).info.run_id, number)

    at_once(folder, inside)


def test_sweeps_of_same_name_have_separate_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two people on one server."""
    mine = sweep(tmp_path / "mine", "first")
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(tmp_path / "theirs"))
    theirs = sweep(tmp_path / "theirs", "first")
    assert mine.path != theirs.path and mine.id != theirs.id
    for folder in (mine, theirs):
        at_once(folder, lambda folder=folder: trial(folder))
        mirror_sweep(folder, TREE, FOUND, {}, "note")
    parents = {of(folder).info.run_id for folder in (mine, theirs)}
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
            at_once(folder, inside)
    else:
        at_once(folder, inside)
    ended = of(folder)
    assert ended.info.status == status
    seen: list[str] = []
    at_once(folder, lambda: seen.append(of(folder).info.status))
    assert seen == ["RUNNING"]
    assert of(folder).info.run_id == ended.info.run_id


def test_mirror_sweep_is_idempotent(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "twice")
    for _ in range(2):
        mirror_sweep(folder, TREE, FOUND, {"trials": 2}, "note")
    client = connect(tracking_uri())
    found = of(folder)
    assert [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, "best")] == [(0, 3.0)]
    assert found.data.params == {"trials": "2"}


def test_update_parent_adopts_earlier_trial(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "late")
    assert PARENT not in trial(folder).data.tags
    at_once(folder, lambda: None)
    assert trial(folder).data.tags[PARENT] == of(folder).info.run_id


def test_update_parent_tolerates_unreachable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////dev/null/mlflow.db")
    done: list[bool] = []
    at_once(sweep(tmp_path, "away"), lambda: done.append(True))
    assert done
    with pytest.raises(UserError, match="cannot be created"):
        mlflow_parent.reachable_store(tracking_uri())
