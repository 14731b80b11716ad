"""Which failures of a stage are retried."""

from __future__ import annotations

import pytest

from flows import tasks
from rlcore.errors import EnvironmentLost, OutOfMemory, UserError


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (MemoryError("Unable to allocate 28 GiB"), False),
        (OSError(12, "Cannot allocate memory"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"), False),
        (OutOfMemory("x"), False),
        (UserError("x"), False),
        (EnvironmentLost("x"), True),
        (ConnectionError("x"), True),
    ],
)
def test_may_recover_excludes_memory_and_user_errors(failure: Exception, again: bool) -> None:
    assert tasks.may_recover(failure) is again
