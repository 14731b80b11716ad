"""Comparison of runs by a number from `info` or the metric of a callback (`shepherd compare --metric`)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from flows.cli import main as cli
from rlcore.store.events import EventLog
from tests.flows.compare.runs import group_of
from tests.flows.compare.test_comparison import HIGH, LOW


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no pictures, which takes four seconds for a comparison."""
    monkeypatch.setattr("flows.compare.report.draw", lambda comparison: [])


def test_compare_ranks_by_number_from_info(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is the return divided by -100, so the group with lower returns is better."""
    for group, values in (("low", LOW), ("high", HIGH)):
        group_of(root, group, values, info="speed")
    assert cli.main(["compare", "low", "high", "--metric", "speed", "--out", "by_speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["best"] == "low" and found["metric"] == "speed"
    assert found["value"] == "greedy mean speed of the final evaluation"
    assert "interquartile mean speed" in " ".join(found["verdict"]["sentences"])
    values = np.sort(LOW)[2:-2].mean() / -100  # of ten runs, the interquartile mean is that of the middle six
    assert found["aggregates"]["CartPole-v1"]["low"]["iqm"]["value"] == pytest.approx(values)
    assert found["scales"]["CartPole-v1"]["0"] == pytest.approx(-0.2)  # of the random policy
    page = Path("by_speed/index.html").read_text()
    assert "CartPole-v1: speed by policy steps" in page
    points = csv.DictReader(Path("by_speed/points.csv").read_text().splitlines())
    assert {row["metric"] for row in points} == {"Evaluation/greedy_speed", "Game/speed"}


def test_compare_without_metric_ignores_numbers_from_info(
    root: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for group, values in (("low", LOW), ("high", HIGH)):
        group_of(root, group, values, info="speed")
    assert cli.main(["compare", "low", "high", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["best"] == "high" and found["metric"] == "return"


def test_compare_by_number_uses_last_evaluations_without_final_one(
    root: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for group, value in (("a", 100.0), ("b", 60.0)):
        group_of(root, group, [value], info="speed", final=False)
    assert cli.main(["compare", "a", "b", "--metric", "speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Evaluations rise from 20 in four steps, to 100: 40, 60, 80, 100; the last three have the mean 80.
    assert found["sides"]["a"]["values"]["CartPole-v1"] == pytest.approx([-0.8])
    assert any("2 of 2 runs have no final evaluation with speed" in note for note in found["notes"])


def test_compare_by_unknown_number_names_key(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group_of(root, "low", LOW[:2], info="speed")
    group_of(root, "high", HIGH[:2])
    assert cli.main(["compare", "low", "high", "--metric", "speed"]) == 2
    error = capsys.readouterr().err
    assert "--metric speed: runs/high_CartPole-v1_0 has no value of speed in its log" in error
    assert "train with env.info_keys=[speed]" in error


def test_compare_refuses_metric_of_the_training(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("low", "high"):
        for run in group_of(root, group, LOW[:2]):
            EventLog(run.events).append("metrics", policy_steps=4096, values={"Loss/value_loss": 1.0})
    assert cli.main(["compare", "low", "high", "--metric", "Loss/value_loss"]) == 2
    assert "has no value of Loss/value_loss in its log" in capsys.readouterr().err


def test_compare_ranks_by_metric_of_callback(root: Path, undrawn: None, capsys: pytest.CaptureFixture[str]) -> None:
    for group, values in (("low", LOW), ("high", HIGH)):
        for run, value in zip(group_of(root, group, values), values, strict=True):
            for at in (1024, 2048, 3072, 4096):
                logged = {"Mine/cost": -value, "Mine/other": 1.0}
                EventLog(run.events).append("callback", policy_steps=at, method="on_evaluation", values=logged)
    assert cli.main(["compare", "low", "high", "--metric", "Mine/cost", "--out", "by_cost", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"]["best"] == "low" and found["metric"] == "Mine/cost"
    assert sorted(found["sides"]["low"]["values"]["CartPole-v1"]) == pytest.approx(sorted(-np.array(LOW)))
    points = csv.DictReader(Path("by_cost/points.csv").read_text().splitlines())
    assert {row["metric"] for row in points} == {"Mine/cost"}
