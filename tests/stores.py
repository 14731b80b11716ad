"""Shared resources that take seconds to make: empty databases of a home, and a Prefect API with its database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.process.locks import hold
from tests.processes import environment, wait_for

LOGIN = "tests:secret"
SERVE = (
    "from flows.settings import configure_environment as c; c(); from flows.workers.local_api import serve; "
    f"serve({LOGIN!r})"
)


def furnish(home: Path) -> None:
    """Give a fresh home the folder that a first command would have made there, with the databases.

    Only MLflow's unused experiment "Default" is different: its artifact folder is where the store was made.
    """
    shared = Path(os.environ["TESTS_SHARED"])  # of the whole session: tests/conftest.py
    with hold(shared / "lock"):
        if not (shared / ".shepherd/mlflow.db").exists():
            make = [sys.executable, "-m", "flows.workers.up", "databases"]
            subprocess.run(make, env=environment(shared), check=True, capture_output=True)
    shutil.copytree(shared / ".shepherd", home / ".shepherd")


def standing_api() -> dict[str, str]:
    """Return variables with which commands use one Prefect server for all tests of the session, as after `make up`.

    For tests that do not test the API that a command starts for itself. The first call starts the server; it ends with
    the first process of the session.
    """
    site = Path(os.environ["TESTS_SHARED"], "api")
    site.mkdir(exist_ok=True)
    address = site / "port"
    with hold(site / "lock"):
        if not address.exists():
            furnish(site)
            with open(site.parent / "session") as session, open(site / "log", "wb") as log, open(address, "wb") as port:
                to = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in enumerate((session, port, log))]
                os.posix_spawn(sys.executable, [sys.executable, "-c", SERVE], environment(site), file_actions=to)
        wait_for(lambda: address.read_text().endswith("\n"), "a Prefect API", every=0.05)
    return {"PREFECT_API_URL": f"http://127.0.0.1:{int(address.read_text())}/api", "PREFECT_API_AUTH_STRING": LOGIN}


def query(home: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return rows of Prefect's database, with or without a running server."""
    with closing(sqlite3.connect(home / ".shepherd/prefect/prefect.db", timeout=30)) as store:
        return store.execute(sql, values).fetchall()
