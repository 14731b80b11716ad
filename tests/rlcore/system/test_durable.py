"""Access modes of folders that `make_private` creates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.system.durable import make_private


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_make_private_restricts_new_folder_to_owner(tmp_path: Path) -> None:
    make_private(tmp_path / "runs/one")
    assert (mode(tmp_path / "runs"), mode(tmp_path / "runs/one")) == (0o755, 0o700)


def test_make_private_keeps_mode_of_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    make_private(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o755


def test_make_private_keeps_group_of_shared_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o2775)
    make_private(tmp_path / "runs/one")
    assert mode(tmp_path / "runs/one") == 0o750
    os.umask(0o002)
    make_private(tmp_path / "runs/two")
    assert mode(tmp_path / "runs/two") == 0o770
