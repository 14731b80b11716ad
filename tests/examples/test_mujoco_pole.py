"""A cart with a pole in mujoco-torch: equal to MuJoCo, trained and resumed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from flows.config.compose import compose
from rlcore.errors import UserError
from tests import processes
from tests.soaking import always, heavy

EXAMPLE = processes.ROOT / "examples/mujoco_pole"
WORDS = ["env=batched", "env.id=pole", "env.wrapper._target_=mujoco_pole.MujocoPole", "plugins=[mujoco_pole]"]
pytestmark = [heavy, pytest.mark.usefixtures("folder")]


@pytest.fixture
def check() -> Callable[[str], None]:
    if importlib.util.find_spec("mujoco_torch") is None:
        pytest.skip("mujoco-torch is not installed")

    def run(name: str) -> None:
        path = os.pathsep.join(filter(None, [str(processes.ROOT), os.environ.get("PYTHONPATH")]))
        subprocess.run(
            [sys.executable, "-m", "tests.examples.mujoco_pole_checks", name],
            env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            check=True,
            timeout=300,
        )

    return run


@always
def test_pole_moves_as_in_mujoco(check: Callable[[str], None]) -> None:
    check("moves_as_in_mujoco")


def test_card_has_tier_snapshot(check: Callable[[str], None]) -> None:
    check("has_tier_snapshot")


def test_training_in_pole_resumes_exactly(check: Callable[[str], None]) -> None:
    check("resumes_exactly")


@always
def test_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco_torch", None)
    with pytest.raises(UserError) as refused:
        compose(["exp=ppo", *WORDS])
    assert str(refused.value) == "mujoco_pole: mujoco-torch is not installed; run: pip install -e '.[mujoco-torch]'"


@always
def test_plugin_is_short() -> None:
    assert len((EXAMPLE / "mujoco_pole.py").read_text().splitlines()) <= 60
