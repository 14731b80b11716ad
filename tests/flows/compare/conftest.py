"""Fixtures with an empty folder `runs`, and a function that compares sides in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.compare.gather import gather
from flows.compare.result import Comparison, compare

Compared = Callable[..., Comparison]


@contextmanager
def empty_root(folder: Path) -> Iterator[Path]:
    """Create the folder `runs` in a working directory and disable fsync, because tests write hundreds of runs."""
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield folder / "runs"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Folder `runs` in an empty working directory."""
    with empty_root(tmp_path) as root:
        yield root


@pytest.fixture
def compared(root: Path) -> Compared:
    """Compare the sides given by words."""

    def compare_sides(*words: str, threshold: float | None = None) -> Comparison:
        return compare(gather(words, "runs"), threshold)

    return compare_sides
