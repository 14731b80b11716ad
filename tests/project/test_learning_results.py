"""The pages on what the presets reach: they say what the figures beside them say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import learning_pages
from benchmarks.validate import CASES, RESULTS
from flows.config.compose import compose


def test_pages_are_those_of_the_figures(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "learning.json", tmp_path)
    learning_pages.write_pages(tmp_path)
    for name in ("ppo.md", "a2c.md", "sac.md"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()


def test_every_case_is_a_config_whose_figures_are_of_its_environment_and_budget() -> None:
    figures = json.loads((RESULTS / "learning.json").read_text())
    for name, case in CASES.items():
        config = compose(case.overrides.split())[0]
        if name in figures:
            assert figures[name]["env"] == config.env.id
            assert figures[name]["gates"][-1]["policy_steps"] == config.algo.total_steps


@pytest.mark.parametrize(("returns", "passes"), [([1, 1, 1, 1, 0], True), ([1, 1, 1, 0, 0], False), ([1, 0], False)])
def test_four_of_five_seeds_must_reach_a_mark(returns: list[float], passes: bool) -> None:
    gate = {"of": "greedy", "policy_steps": 1, "at_least": 1.0, "values": returns}
    assert learning_pages.passed({"gates": [gate]}) is passes
    assert learning_pages.passed({"gates": [gate, gate | {"values": [0, 0, 0, 0, 1]}]}) is False


def test_a_mark_may_be_one_to_stay_below_and_a_training_may_have_so_many_seconds() -> None:
    below = {"of": "greedy", "policy_steps": 1, "at_most": 250.0, "values": [249, 250, 100, 50, 251]}
    assert learning_pages.passed({"gates": [below]})
    assert not learning_pages.passed({"gates": [below | {"at_most": 240.0}]})
    reached = {"gates": [{"of": "greedy", "policy_steps": 1, "at_least": 900.0, "values": [1000] * 5}], "within_s": 60}
    assert learning_pages.passed(reached | {"cpu_s": 59.0})
    assert not learning_pages.passed(reached | {"cpu_s": 61.0})
