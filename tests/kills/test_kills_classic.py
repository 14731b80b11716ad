"""Killed at drawn moments and resumed: the environments of Gymnasium itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills.cases import ENVIRONMENTS
from tests.kills.sampled import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("env_id", ENVIRONMENTS[:4])
def test_killed_anywhere_a_run_ends_in_the_bits_of_the_one_nobody_killed(env_id: str, tmp_path: Path) -> None:
    check(env_id, ("in-process", "subprocess"), tmp_path)
