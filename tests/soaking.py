"""Marks of tests that `make test` leaves out, because the whole suite takes too long to run at every change.

| mark     | runs with                                                                   |
|----------|-----------------------------------------------------------------------------|
| `soak`   | `SOAK=1` only: minutes each, or a case whose code other cases cover         |
| `heavy`  | `make test ALL=1`, or `pytest` with the file's name                         |
| `always` | `make test` too: one test of each main behavior of a file marked `heavy`    |

The marks alone decide which tests run. Therefore the same tests run at every commit.
"""

from __future__ import annotations

import os

import pytest

soak = pytest.mark.skipif(not os.environ.get("SOAK"), reason="minutes, or covered by others; SOAK=1 runs it")
heavy = pytest.mark.heavy
always = pytest.mark.always
