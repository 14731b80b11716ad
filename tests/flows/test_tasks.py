"""Which failures of a stage are tried again."""

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
def test_may_pass_is_false_of_memory_that_is_not_there(failure: Exception, again: bool) -> None:
    assert tasks.may_recover(failure) is again
