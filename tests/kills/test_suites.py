"""Killed and resumed: environments of suites that are engines of their own, at drawn moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diambra_engine import engines
from tests.kills.cases import ENGINES, SUITES
from tests.kills.sampled import check
from tests.soaking import heavy, soak

pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which nobody kills


# Their tiers are killed as other environments (test_kills.py), their frames and engines resumed in this process
# (tests/contract/test_images.py, tests/rlcore/envs/suites).
@soak
@pytest.mark.parametrize("env_id", SUITES)
def test_killed_anywhere_a_run_on_an_engine_ends_in_the_same_bits(env_id: str, tmp_path: Path) -> None:
    check(env_id, ("subprocess",), tmp_path)


def test_killed_anywhere_a_game_on_an_engine_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot be copied and outlives who was killed: the next one starts a new game on it."""
    with engines(ENGINES) as addresses:
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(addresses))
        run = check("doapp", ("subprocess",), tmp_path)
    assert '"tier": "boundary"' in run.card.read_text()
