"""Tests that not every `make test` runs: those of minutes are left to `make soak`, heavy ones take turns.

A commit's hash says whose turn it is, so a fifth of the heavy ones runs with each commit, another fifth with the next.
Whoever names tests (a file, `-k`, `-m`) gets all of them; so does `make test TURN=all`, and TURN=2 asks for one turn.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

soak = pytest.mark.skipif(not os.environ.get("SOAK"), reason="minutes; SOAK=1 runs it")
in_turn = pytest.mark.in_turn  # each test by itself
file_in_turn = pytest.mark.in_turn(whole_file=True)  # a file whose tests share what is dear: servers, a sweep
TURNS = 5
NOT_NOW = "another commit's turn; TURN=all runs it"


def turn(asked: str | None, root: Path) -> int | None:
    """Whose turn it is: as was asked, or by the hash of the checked-out commit; None: everybody's.

    Raises:
        ValueError: what was asked is neither "all" nor a turn.
    """
    if asked == "all":
        return None
    if asked:
        if asked not in map(str, range(TURNS)):
            raise ValueError(f"TURN={asked}: all, or one of 0 to {TURNS - 1}")
        return int(asked)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(head.stdout.strip() or "0", 16) % TURNS


def pytest_configure(config: pytest.Config) -> None:
    """Settle whose turn it is, for all workers."""
    if not hasattr(config, "workerinput"):  # by whom workers are started: they find it settled
        named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        whole = not (named or config.option.keyword or config.option.markexpr or os.environ.get("SOAK"))
        try:
            now = turn(os.environ.get("TURN"), Path(__file__).parent) if whole else None
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        os.environ["TURN"] = "all" if now is None else str(now)


def pytest_report_header() -> str:
    return f"heavy tests: turn {os.environ['TURN']} of 0 to {TURNS - 1} (tests/soaking.py)"


def skip_others(items: Iterable[pytest.Item]) -> None:
    """Skip those that take turns and whose turn it is not: dealt like cards, so that each turn gets of each kind."""
    if os.environ["TURN"] == "all":
        return
    now = int(os.environ["TURN"])
    dealt: dict[bool, dict[str, int]] = {True: {}, False: {}}
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker is None or soak.mark in item.iter_markers():
            continue
        whole_file = bool(marker.kwargs.get("whole_file"))
        hands = dealt[whole_file]
        name = str(item.path) if whole_file else item.nodeid
        if hands.setdefault(name, len(hands) % TURNS) != now:
            item.add_marker(pytest.mark.skip(reason=NOT_NOW))
