"""Registration of a model while another process locks the database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from flows.process.exits import run_command
from flows.settings import tracking_uri
from flows.stages.register_model import register_model
from flows.tracking import mlflow_store
from flows.tracking.mlflow_store import file_of
from rlcore.errors import MachineFault
from tests.flows.synthetic_runs import checkpointed_run, evaluations, named

# MLflow itself raises warnings at import and in use; warnings of our own code are still errors.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore")]


@contextmanager
def locked() -> Iterator[None]:
    """Lock MLflow's database inside the `with`, as a program that copies it does."""
    file = file_of(tracking_uri())
    assert file is not None
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=60)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def test_register_model_waits_for_a_locked_database(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = named(checkpointed_run(tmp_path / "run", "patient", weights=3), "patient")
    evaluations(monkeypatch, lambda digest, episode: 100.0)
    monkeypatch.setattr(mlflow_store, "PATIENCE", 0.5)
    with locked(), pytest.raises(MachineFault, match="has locked MLflow's database; end .* training has finished"):
        register_model(run)
    monkeypatch.setattr(mlflow_store, "PATIENCE", 120.0)
    held = locked()
    held.__enter__()
    threading.Timer(4.0, held.__exit__, (None, None, None)).start()
    assert register_model(run)["version"] == 1
    assert "has locked this database; waiting for it" in caplog.text


def test_run_command_reports_locked_database(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        try:
            raise sqlite3.OperationalError("database is locked")
        except sqlite3.OperationalError as error:
            raise ValueError("(sqlite3.OperationalError) database is locked\n[SQL: SELECT name]") from error

    assert run_command(command) == 1
    output = capsys.readouterr().err
    assert output == "shepherd: failed: another process has locked a database; end it and run the command again\n"
