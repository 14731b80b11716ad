"""Another user of the machine can neither read the files of `shepherd train` nor use its API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.settings import state_folder
from tests import processes
from tests.flows.sweeps.fake import make_sweep
from tests.retries import run_command
from tests.soaking import always, heavy
from tests.stores import furnish

# Python may be installed where others have no access, so it starts as this user and then becomes another one.
BECOME_NOBODY = """
import encodings.idna, json, os, sys, urllib.error, urllib.request
os.setgroups([]), os.setgid(65534), os.setuid(65534)
"""
TINY = [
    "exp=ppo",
    "algo.total_steps=128",
    "algo.rollout_steps=32",
    "evaluation.final_episodes=2",
    "evaluation.baseline_episodes=2",
    "env.capture_video=false",
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's, while the umask lets others read."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
    os.umask(before)


def as_stranger(script: str, *arguments: str) -> Any:
    """JSON output of a script that runs as another user without shared groups."""
    command = [sys.executable, "-S", "-c", BECOME_NOBODY + script, *arguments]
    done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


READ_ALL = """
found = [os.path.join(folder, file) for folder, _, files in os.walk(sys.argv[1]) for file in files]
print(json.dumps([path for path in found if os.access(path, os.R_OK)]))
"""
ASK = """
url, pid = sys.argv[1:]
def status(path, **more):
    try:
        return urllib.request.urlopen(urllib.request.Request(url + path, **more), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
def secret():
    try:
        return open(f"/proc/{pid}/environ", "rb").read().decode()
    except PermissionError:
        return ""
json_type = {"Content-Type": "application/json"}
print(json.dumps([
    status("/flow_runs/filter", data=b"{}", headers=json_type),
    status("/deployments/", data=b"{}", headers=json_type),
    status("/flow_runs/1", method="DELETE"),
    status("/admin/database/clear", data=b'{"confirm": true}', headers=json_type),
    secret(),
]))
"""


def test_state_folder_is_private_to_owner(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_HOME", str(place))
    assert state_folder().stat().st_mode & 0o777 == 0o700
    state_folder().chmod(0o755)  # as earlier versions made it
    assert state_folder().stat().st_mode & 0o777 == 0o750
    state_folder().chmod(0o770)  # shared with a group on purpose
    assert state_folder().stat().st_mode & 0o777 == 0o770


def test_sweep_folders_are_private_to_owner(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_RUN_ROOT", str(place / "runs"))
    sweep, _ = make_sweep(place / "runs/sweeps", "mine")
    assert [folder.stat().st_mode & 0o777 for folder in (sweep.path, sweep.runs)] == [0o700, 0o700]


@pytest.mark.slow
@heavy
@as_root
def test_run_files_are_unreadable_for_other_users(place: Path) -> None:
    furnish(place)
    (place / ".shepherd").chmod(0o755)  # made before the command, as by an earlier version
    command = [sys.executable, "-m", "flows.cli.main", "train", *TINY, "run_dir=runs/one"]
    done = run_command(command, cwd=place, env=processes.environment(place), text=True)
    assert done.returncode == 0, done.stderr
    assert (place / "runs/one/config.yaml").exists() and (place / ".shepherd/mlflow.db").exists()
    assert as_stranger(READ_ALL, str(place)) == []
    (place / "runs/one").chmod(0o755)  # shared on purpose
    assert str(place / "runs/one/config.yaml") in as_stranger(READ_ALL, str(place))


@always
@pytest.mark.slow
@heavy
@as_root
def test_command_api_refuses_other_users(home: Path) -> None:
    from flows.workers.local_api import prefect_api

    with prefect_api() as url:
        (api,) = [child for child in psutil.Process().children() if "flows.workers.local_api" in child.cmdline()]
        assert as_stranger(ASK, url, str(api.pid)) == [401, 401, 401, 401, ""]
