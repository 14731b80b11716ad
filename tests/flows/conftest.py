"""Stores for the tests of the flows: real MLflow on SQLite in a folder of the test module's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import furnish

OWNED = ("PREFECT_", "MLFLOW_", "_MLFLOW_", "SHEPHERD_")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project home of the test module's own, with fresh stores."""
    folder = tmp_path_factory.mktemp("home")
    furnish(folder)
    before = {name: value for name, value in os.environ.items() if name.startswith(OWNED) and name != "SHEPHERD_WARM"}
    for name in before:
        del os.environ[name]
    os.environ["SHEPHERD_HOME"] = str(folder)
    from flows.settings import configure_environment

    configure_environment()
    yield folder
    for name in [name for name in os.environ if name.startswith(OWNED) and name != "SHEPHERD_WARM"]:
        del os.environ[name]
    os.environ.update(before)
