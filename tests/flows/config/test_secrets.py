"""A password in a config is refused before the run is created, and the message does not contain it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli import main as cli


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("metric.logger.tracking_uri=https://me:hunter2@host:5000", "put those into MLFLOW_TRACKING_USERNAME and"),
        (
            "metric.logger.tracking_uri=postgresql://me:hunter2@host/db",
            "put the whole address into MLFLOW_TRACKING_URI",
        ),
        ("metric.logger.tracking_uri=${oc.env:STORE}", "metric.logger.tracking_uri=https://me:***@host: "),
        ("+metric.logger.tags.store=https://me:hunter2@host", "metric.logger.tags.store=https://me:***@host: "),
        (
            "+model_manager.models.agent.tags.team=[a,postgresql://me:hunter2@host/db]",
            "model_manager.models.agent.tags.team=postgresql://me:***@host/db: ",
        ),
        ("metric.logger.traking_uri=https://me:hunter2@host", "did you mean 'metric.logger.tracking_uri'?"),
        ("env.wrapper.password=hunter2", "env.wrapper.password=***: must not contain a password"),
        ("+metric.logger.tags={my_api_key: hunter2}", "metric.logger.tags.my_api_key=***: must not contain a password"),
        ("+api_key=hunter2", "unknown key 'api_key' (value ***)"),
        ("env.secret=hunter2", "unknown key 'env.secret' (value ***)"),
        ("metric.log_every=https://me:hunter2@host", "metric.log_every=https://me:***@host"),
    ],
)
def test_train_refuses_password_without_printing_it(
    typed: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path))
    monkeypatch.setenv("STORE", "https://me:hunter2@host")
    run = tmp_path / "run"
    assert cli.main(["train", "exp=ppo", f"run_dir={run}", typed]) == 2
    output = "".join(capfd.readouterr())
    assert expected in output
    assert output.count("\n") == 1
    assert "hunter2" not in output
    assert not run.exists()
