"""Tests that take minutes: `make soak` runs them, `make test` leaves them out."""

from __future__ import annotations

import os

import pytest

soak = pytest.mark.skipif(not os.environ.get("SOAK"), reason="minutes; SOAK=1 runs it")
