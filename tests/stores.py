"""Things that tests share, for they take seconds: a home's empty databases, a Prefect API; a look into its database."""

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
    """Give a fresh home the folder that a first command would have made there, the databases in it.

    Only MLflow's experiment "Default" tells the difference: its files lie where the store was made. Nobody uses it.
    """
    made = Path(os.environ["TESTS_SHARED"])  # of the whole session: tests/conftest.py
    with hold(made / "lock"):
        if not (made / ".shepherd/mlflow.db").exists():
            make = [sys.executable, "-m", "flows.workers.databases"]
            subprocess.run(make, env=environment(made), check=True, capture_output=True)
    shutil.copytree(made / ".shepherd", home / ".shepherd")


def standing_api() -> dict[str, str]:
    """The variables of a command that finds a Prefect server, as after `make up`: one for all tests of the session.

    For tests that are not about the API which a command starts for itself. Whoever asks first starts it; it ends when
    the session's first process does.
    """
    site = Path(os.environ["TESTS_SHARED"], "api")
    site.mkdir(exist_ok=True)
    said = site / "port"
    with hold(site / "lock"):
        if not said.exists():
            furnish(site)
            with open(site.parent / "session") as session, open(site / "log", "wb") as log, open(said, "wb") as port:
                to = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in enumerate((session, port, log))]
                os.posix_spawn(sys.executable, [sys.executable, "-c", SERVE], environment(site), file_actions=to)
        wait_for(lambda: said.read_text().endswith("\n"), "a Prefect API", every=0.05)
    return {"PREFECT_API_URL": f"http://127.0.0.1:{int(said.read_text())}/api", "PREFECT_API_AUTH_STRING": LOGIN}


def query(home: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of Prefect's database, with a server and without."""
    with closing(sqlite3.connect(home / ".shepherd/prefect/prefect.db", timeout=30)) as store:
        return store.execute(sql, values).fetchall()
