"""Heavy tests take turns: every one has its turn, whoever names tests gets them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soaking import TURNS, turn

CONFTEST = """
from tests.soaking import pytest_configure, skip_others


def pytest_collection_modifyitems(items):
    skip_others(items)
"""
TESTS = """
import pytest
from tests.soaking import file_in_turn, in_turn, soak


@in_turn
@pytest.mark.parametrize("number", range(6))
def test_heavy(number):
    pass


def test_light():
    pass


@soak
@in_turn
def test_of_minutes():
    pass
"""
WHOLE_FILE = """
from tests.soaking import file_in_turn

pytestmark = file_in_turn


def test_one():
    pass


def test_other():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "soaking.py").write_text((Path(__file__).resolve().parents[1] / "soaking.py").read_text())
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_each.py").write_text(TESTS)
    for number in range(3):
        (tests / f"test_file_{number}.py").write_text(WHOLE_FILE)
    marker = '"in_turn(whole_file=False): x"'
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.pytest.ini_options]\ntestpaths = ["tests"]\npythonpath = ["."]\nmarkers = [{marker}]\n'
    )
    return tmp_path


def run(project: Path, *words: str, **variables: str) -> set[str]:
    """Names of the tests that ran."""
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-rA", *words]
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.removeprefix("PASSED tests/") for line in done.stdout.splitlines() if line.startswith("PASSED")}


def test_every_heavy_test_has_one_turn_and_a_light_one_has_all(project: Path) -> None:
    ran = [run(project, TURN=str(number)) for number in range(TURNS)]
    everything = run(project, TURN="all")
    assert len(everything) == 6 + 1 + 3 * 2
    assert set.union(*ran) == everything
    assert set.intersection(*ran) == {"test_each.py::test_light"}
    assert sum(map(len, ran)) == len(everything) + TURNS - 1
    for number in range(3):
        both = {f"test_file_{number}.py::test_one", f"test_file_{number}.py::test_other"}
        assert sum(both <= chosen for chosen in ran) == sum(bool(both & chosen) for chosen in ran) == 1
    assert run(project, "-n", "2", TURN="1") == ran[1]


def test_whoever_names_tests_gets_them(project: Path) -> None:
    assert len(run(project, "tests/test_each.py", TURN="0")) == 7
    assert len(run(project, "-k", "heavy", TURN="0")) == 6


def test_the_commit_says_whose_turn_it_is(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *settings, *words], cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    assert turn(None, tmp_path) == 0  # no repository
    git("init")
    for number in range(3):
        git("commit", "--allow-empty", "-m", str(number))
        assert turn(None, tmp_path) == int(git("rev-parse", "HEAD"), 16) % TURNS
    assert (turn("2", tmp_path), turn("all", tmp_path)) == (2, None)
    with pytest.raises(ValueError, match="TURN=5: all, or one of 0 to 4"):
        turn("5", tmp_path)
