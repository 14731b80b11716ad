"""Prefect's empty database, made once a session for all homes that need one: its tables take ten seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from flows.home import locked
from tests.processes import environment

MAKE = "from flows.ephemeral import prefect_api\nwith prefect_api():\n    pass"


def furnish(home: Path) -> None:
    """Give a fresh home the folder that a first command would have made there, Prefect's database in it."""
    made = Path(os.environ["TESTS_SHARED"])  # of the whole session: tests/conftest.py
    with locked(made / "lock"):
        if not (made / ".shepherd/prefect/prefect.db").exists():
            subprocess.run([sys.executable, "-c", MAKE], env=environment(made), check=True, capture_output=True)
    shutil.copytree(made / ".shepherd", home / ".shepherd")
