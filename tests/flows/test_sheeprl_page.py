"""Code on the page for users of SheepRL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from_sheeprl.md").read_text()
TABLE = PAGE.partition("## Python imports")[2].partition("\n## ")[0]
IMPORTS = dict(re.findall(r"^\| (.+?) \| `(from .+? import .+?)` \|", TABLE, re.MULTILINE))


def test_sheeprl_page_lists_common_imports():
    assert len(IMPORTS) == len(TABLE.strip().splitlines()) - 2  # the head and the line below it
    for name in ("make_env", "cli.run", "cli.registration", "cli.evaluation", "buffers.ReplayBuffer", "build_agent"):
        assert any(name in left for left in IMPORTS), name
    for name in ("dotdict", "get_logger", "timer.timer", "register_algorithm", "register_evaluation"):
        assert any(name in left for left in IMPORTS), name


@pytest.mark.parametrize("line", IMPORTS.values())
def test_sheeprl_page_replacement_imports_exist(line):
    exec(line, {})


def test_sheeprl_page_other_names_exist():
    from flows import load_world_model
    from rlcore.data.samplers import Sequences, Transitions
    from rlcore.store import checkpoint

    assert all((load_world_model, Sequences, Transitions, checkpoint.save, checkpoint.load, checkpoint.resolve))
