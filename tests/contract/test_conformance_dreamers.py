"""Every Dreamer passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlcore.config.run import RunConfig
from tests.contract.cases import cases_of, config


@pytest.mark.parametrize(("algo", "env_id", "check"), cases_of(lambda algo: algo.startswith("dreamer")))
def test_dreamer_passes_conformance(algo: str, env_id: str, check: Callable[[RunConfig], None]) -> None:
    check(config(algo, env_id))
