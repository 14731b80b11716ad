"""The checks of the conformance suite as parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore import conformance
from tests.soaking import soak


def conformance_checks() -> list[Any]:
    """Return all checks; the one that builds machine code, which takes minutes, runs with SOAK=1 only."""
    return [
        pytest.param(check, id=check.__name__, marks=soak if check is conformance.machine_code_equals_eager else ())
        for check in conformance.CHECKS
    ]
