"""A folder of runs to compare from within."""

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
    """`runs` in a working directory; hundreds of small runs are written there, which need not outlive a crash."""
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield folder / "runs"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """`runs` in an empty working directory."""
    with empty_root(tmp_path) as root:
        yield root


@pytest.fixture
def compared(root: Path) -> Compared:
    """Compares the sides that words mean beneath the root."""

    def made(*words: str, threshold: float | None = None) -> Comparison:
        return compare(gather(words, "runs"), threshold)

    return made
