"""Killed and resumed at random moments: environments of suites with engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diambra_engine import engines
from tests.kills.cases import ENGINES, SUITES
from tests.kills.sampled import check
from tests.soaking import heavy, soak

pytestmark = [heavy, pytest.mark.slow, pytest.mark.usefixtures("warm")]  # for the last start, which is not killed


# test_kills.py kills other environments of their tiers; frames and engines are resumed in one process by
# tests/contract/test_images.py and tests/rlcore/envs/suites.
@soak
@pytest.mark.parametrize("env_id", SUITES)
def test_killed_suite_run_resumes_to_same_bits(env_id: str, tmp_path: Path) -> None:
    check(env_id, ("subprocess",), tmp_path)


def test_killed_diambra_run_resumes_to_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine cannot be copied and survives the kill: the resumed run starts a new game on it."""
    with engines(ENGINES) as addresses:
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(addresses))
        run = check("doapp", ("subprocess",), tmp_path)
    assert '"tier": "boundary"' in run.card.read_text()
