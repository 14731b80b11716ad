"""A password from the environment opens a store, but appears in no file and no output."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from flows.cli.train_command import next_commands
from flows.tracking.mlflow_run import flat
from rlcore.store.directory import RunDirectory
from tests.flows.synthetic_runs import synthetic_run
from tests.processes import environment
from tests.retries import run_command
from tests.soaking import heavy

pytestmark = heavy


class Refusing(BaseHTTPRequestHandler):
    """An MLflow server that refuses every request with an error message that contains a password."""

    credentials: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.credentials.append(self.headers["Authorization"])
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b'{"error_code": "PERMISSION_DENIED", "message": "https://me:hunter2@host: not you"}')

    do_POST = do_GET  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def refusing() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["environment", "old config"])
def test_password_reaches_server_but_no_file_or_output(tmp_path: Path, where: str) -> None:
    run = synthetic_run(tmp_path / "run", "secret")
    with refusing() as port:
        address = f"http://me:hunter2@127.0.0.1:{port}"
        variables = {"MLFLOW_TRACKING_URI": address} if where == "environment" else {}
        if where == "old config":  # from before such a config was refused
            tree = yaml.safe_load(run.config.read_text())
            tree["metric"]["logger"]["tracking_uri"] = address
            run.config.write_text(yaml.safe_dump(tree))
        done = run_command(
            [sys.executable, "-m", "flows.tracking", str(run.path)],
            env=environment(tmp_path, **variables),
            text=True,
        )
    assert done.returncode == 1
    assert "MLflow is behind" in run.log.read_text()
    assert set(Refusing.credentials) == {"Basic " + base64.b64encode(b"me:hunter2").decode()}
    assert "hunter2" not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != run.config]
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_flat_masks_password_of_old_config() -> None:
    params = flat({"metric": {"logger": {"tracking_uri": "postgresql://me:hunter2@host/db", "tags": None}}})
    assert params["metric.logger.tracking_uri"] == "postgresql://me:***@host/db"


@pytest.mark.parametrize(
    ("store", "command"),
    [
        ("postgresql://me:hunter2@host/db", "shepherd ui"),
        ("https://me:hunter2@host", "https://me:***@host"),
    ],
)
def test_next_commands_mask_password_of_store(store: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert next_commands(RunDirectory("run"))[-1].endswith(command)


def test_configure_environment_splits_addresses_from_passwords(tmp_path: Path) -> None:
    program = """
import os
from flows.settings import configure_environment
configure_environment()
names = "MLFLOW_TRACKING_URI MLFLOW_TRACKING_USERNAME MLFLOW_TRACKING_PASSWORD PREFECT_API_URL PREFECT_API_AUTH_STRING"
print(*(os.environ[name] for name in names.split()))
"""
    addresses = {
        "MLFLOW_TRACKING_URI": "https://me:hunter%402@host:5000/mlflow",
        "PREFECT_API_URL": "http://admin:pass@host:4200/api",
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(tmp_path, **addresses), capture_output=True, text=True)
    assert done.stdout.split() == [
        "https://host:5000/mlflow",
        "me",
        "hunter@2",
        "http://host:4200/api",
        "admin:pass",
    ]
