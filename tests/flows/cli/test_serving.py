"""`shepherd ui` and `shepherd serve`: processes, password, and checks before anything is served."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.cli import serving
from flows.workers.servers import own_login
from rlcore.errors import UserError
from tests import processes
from tests.flows.workers.test_guard import basic
from tests.processes import answers, free_port
from tests.retries import wait_for
from tests.soaking import always, heavy


@always
@pytest.mark.slow
@heavy
def test_ui_is_one_process_with_password(home: Path, tmp_path: Path) -> None:
    """`mlflow ui` itself would start seven more processes, which remain after it ends."""
    port = free_port()
    with open(tmp_path / "log", "wb") as log:
        command = [sys.executable, "-m", "flows.cli.main", "ui", "--port", str(port)]
        server = subprocess.Popen(command, env=processes.environment(home), stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: answers(f"{url}/health") or server.poll() is not None, "an answer", every=0.2)
    assert server.poll() is None, (tmp_path / "log").read_text()
    name, value = (part.decode() for part in basic(own_login()))
    search_url = f"{url}/ajax-api/2.0/mlflow/experiments/search?max_results=1"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(search_url, timeout=60)
    with urllib.request.urlopen(urllib.request.Request(search_url, headers={name: value}), timeout=60) as answer:
        assert b"experiments" in answer.read()
    assert psutil.Process(server.pid).children(recursive=True) == []
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 130
    text = (tmp_path / "log").read_text()
    assert "password in" in text and own_login().partition(":")[2] not in text and "Warning" not in text


def test_ui_names_existing_mlflow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:5000")
    with pytest.raises(UserError, match=r"http://me:\*\*\*@127.0.0.1:5000: MLflow is already a server at this address"):
        serving.ui(5000)


def test_serve_refuses_port_before_loading_model() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: cannot be used .*; choose another port"):
            serving.serve("models:/none@champion", port)
    with pytest.raises(UserError, match="--port 70000: must be from 1 to 65535"):
        serving.serve("models:/none@champion", 70000)


def test_serve_refuses_run_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("algo:\n  name: ppo\n")
    with pytest.raises(UserError, match=r"run: not a registered model; use models:/NAME@ALIAS, for example models:/"):
        serving.serve(str(folder), 5002)
