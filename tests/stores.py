"""The empty databases of a home, made once a session (Prefect's tables take ten seconds); and a look into Prefect's."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.process.locks import locked
from tests.processes import environment


def furnish(home: Path) -> None:
    """Give a fresh home the folder that a first command would have made there, the databases in it.

    Only MLflow's experiment "Default" tells the difference: its files lie where the store was made. Nobody uses it.
    """
    made = Path(os.environ["TESTS_SHARED"])  # of the whole session: tests/conftest.py
    with locked(made / "lock"):
        if not (made / ".shepherd/mlflow.db").exists():
            make = [sys.executable, "-m", "flows.workers.databases"]
            subprocess.run(make, env=environment(made), check=True, capture_output=True)
    shutil.copytree(made / ".shepherd", home / ".shepherd")


def query(home: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of Prefect's database, with a server and without."""
    with closing(sqlite3.connect(home / ".shepherd/prefect/prefect.db", timeout=30)) as store:
        return store.execute(sql, values).fetchall()
