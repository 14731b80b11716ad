"""Tables, checked in the printed text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from flows.report.html import document
from flows.report.tables import evaluation_table, summary_html, summary_markdown, summary_table
from rlcore.store.directory import RunDirectory
from tests.flows.conftest import Printed

GREEDY = {"mean": 500.0, "std": 0.0, "ci95": [500.0, 500.0], "episodes": 100, "returns": [500.0] * 100}
SAMPLED = {"mean": 482.9, "std": 30.0, "ci95": [476.8, 488.2], "episodes": 100, "returns": [231.0, 500.0] * 50}
BASELINE = {"mean": 22.3, "std": 11.0, "ci95": [20.1, 24.5], "episodes": 100}
SUMMARY: dict[str, Any] = {
    "run_id": "r1",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 42,
    "policy_steps": 65_536,
    "env_steps": 65_313,
    "updates": 640,
    "wall_s": 75.2,
    "cpu_s": 71.0,
    "policy_steps_per_s": 871.5,
    "eval": {"greedy": GREEDY, "stochastic": SAMPLED},
    "baseline": BASELINE,
    "checkpoint": "checkpoints/65536",
    "video": "media/policy.mp4",
    "model": {"name": "ppo-CartPole-v1", "version": 3, "aliases": ["challenger", "champion"]},
    "fingerprint": {},
}


def test_summary_table_lists_results_and_random_baseline(run: RunDirectory, printed: Printed) -> None:
    rows = [line.split() for line in printed(summary_table(SUMMARY, run)).splitlines()]
    assert ["greedy", "100", "500.0", "500.0", "to", "500.0", "500.0", "500.0"] in rows
    assert ["stochastic", "100", "482.9", "476.8", "to", "488.2", "231.0", "500.0"] in rows
    assert ["random", "baseline", "100", "22.3", "20.1", "to", "24.5", "-", "-"] in rows


def test_summary_lists_numbers_from_info(run: RunDirectory, printed: Printed) -> None:
    won, random = ({"mean": m, "ci95": [m - 0.1, m + 0.1], "episodes": 40} for m in (0.8, 0.2))
    results = {"eval": {"greedy": GREEDY | {"info": {"won": won | {"values": [0.0, 1.0]}}}, "stochastic": SAMPLED}}
    summary = SUMMARY | results | {"baseline": BASELINE | {"info": {"won": random}}}
    rows = [line.split() for line in printed(summary_table(summary, run)).splitlines()]
    assert ["won", "greedy", "40", "0.80", "0.70", "to", "0.90", "0.00", "1.00"] in rows
    assert ["won", "random", "baseline", "40", "0.20", "0.10", "to", "0.30", "-", "-"] in rows
    lines = summary_markdown(summary).splitlines()
    place = lines.index("| won | greedy | 40 | 0.80 | 0.70 to 0.90 | 0.00 | 1.00 |")
    assert lines[place - 3] == "" and lines[place - 2].startswith("| number from info | policy")
    assert "<td>won</td><td>greedy</td>" in summary_html(summary)
    assert "number from info" not in summary_markdown(SUMMARY) + summary_html(SUMMARY)


@pytest.mark.parametrize("columns", [None, 40])
def test_summary_table_shows_steps_model_and_files(columns: int | None, run: RunDirectory, printed: Printed) -> None:
    run.media.mkdir()
    run.curve.touch()
    run.inputs.touch()
    commands = ["shepherd enjoy runs/cart", "mlflow ui --backend-store-uri sqlite:///" + "x" * 120]
    text = re.sub(r"\x1b\[\d*m", "", printed(summary_table(SUMMARY, run, commands), columns=columns))
    for expected in (
        "PPO on CartPole-v1 · seed 42",
        "65,536 (65,313 env steps) in 640 gradient steps",
        "1:15 (872 steps/s; processor 1:11)",
        "ppo-CartPole-v1 version 3 (challenger, champion)",
        " runs/cart\n",
        " runs/cart/checkpoints/65536\n",
        " runs/cart/media/learning_curve.png\n",
        " runs/cart/media/inputs.png\n",
        " runs/cart/media/policy.mp4\n",
        *commands,
    ):
        assert expected in text


def test_summary_table_names_stop_condition(run: RunDirectory, printed: Printed) -> None:
    reason = "upper_bound: Rewards/rew_avg = 480, which is at least 475"
    assert "stopped by" not in printed(summary_table(SUMMARY | {"stopped_by": None}, run))
    stopped = SUMMARY | {"stopped_by": reason}
    text = re.sub(r"\x1b\[\d*m", "", printed(summary_table(stopped, run), columns=120))
    assert re.search(rf"stopped by +{reason}", text)
    assert f"| stopped by | {reason} |" in summary_markdown(stopped)


def test_summary_table_matches_readme(run: RunDirectory, printed: Printed) -> None:
    lines = printed(summary_table(SUMMARY, run)).splitlines()
    readme = (Path(__file__).parents[3] / "README.md").read_text().splitlines()
    begin = readme.index("PPO on CartPole-v1 · seed 42")
    assert lines[:5] == ["", *readme[begin : begin + 4]]  # title, head and rule
    assert [line[:18] for line in lines[5:13]] == [line[:18] for line in readme[begin + 4 : begin + 12]]


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_summary_table_colors_only_a_capable_terminal(
    variables: dict[str, str], run: RunDirectory, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = printed(summary_table(SUMMARY, run, ["shepherd enjoy runs/cart"]))
    assert not re.search(r"[\x1b\r]| \n", plain)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in CI; output to a file has no colors
    assert printed(summary_table(SUMMARY, run, ["shepherd enjoy runs/cart"])) == plain
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    colored = printed(summary_table(SUMMARY, run, ["shepherd enjoy runs/cart"]), columns=100)
    assert re.sub(r"\x1b\[\d*m", "", colored) == plain
    assert ("\x1b[32m" in colored) == ("\x1b" in colored) == (not variables)


def test_evaluation_table_keeps_lines_in_narrow_terminal(run: RunDirectory, printed: Printed) -> None:
    table = evaluation_table({"greedy": GREEDY, "stochastic": SAMPLED}, BASELINE, "runs/cart")
    assert re.sub(r"\x1b\[\d*m", "", printed(table, columns=44)) == printed(table)


def test_evaluation_table_rule_is_ascii_if_needed(printed: Printed) -> None:
    table = evaluation_table({"greedy": GREEDY}, BASELINE, "runs/cart")
    assert "-----" in printed(table, encoding="ascii")


def test_evaluation_table_aligns_columns(printed: Printed) -> None:
    large = {"mean": -123_456.7, "ci95": [-130_000.0, 0.012], "episodes": 10_000, "returns": [-1e7, 3.0]}
    table = evaluation_table({"greedy": large, "stochastic": SAMPLED}, BASELINE, "runs/cart")
    head, rule, *rows = printed(table).splitlines()[2:]
    ends = [m.end() for m in re.finditer(r"episodes|mean return|95 % interval|min|max", head)]
    assert {len(line) for line in rows} == {len(head)}
    assert len(rule) == len(head)
    for row in rows:
        assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for end in ends)


def test_tables_mark_interval_beyond_returns_as_approximation(printed: Printed) -> None:
    """The example is 99 returns of 500 and one of 470: mean 499.7, interval 499.1 to 500.3 by Student's t."""
    near = GREEDY | {"mean": 499.7, "ci95": [499.1, 500.3], "returns": [500.0] * 99 + [470.0]}
    note = "intervals are normal approximations, so their ends may exceed the possible range of returns"
    assert note in printed(evaluation_table({"greedy": near, "stochastic": SAMPLED}, BASELINE, "runs/cart"))
    assert note in summary_markdown(SUMMARY | {"eval": {"greedy": near}})
    random = {"mean": -497.9, "ci95": [-500.8, -494.9], "episodes": 100, "returns": [-500.0] * 99 + [-358.0]}
    assert note in printed(evaluation_table({"stochastic": SAMPLED}, random, "runs/acro"))
    assert note in summary_markdown(SUMMARY | {"baseline": random})
    assert "approximation" not in printed(evaluation_table({"stochastic": SAMPLED}, BASELINE, "runs/cart"))
    assert "approximation" not in summary_markdown(SUMMARY)


def test_summary_table_names_missing_results(run: RunDirectory, printed: Printed) -> None:
    empty = {"greedy": None, "stochastic": None}
    bare = SUMMARY | {"eval": empty, "baseline": {"mean": None}, "model": None, "video": None, "checkpoint": None}
    text = printed(summary_table(bare, run))
    assert "not evaluated" in text
    assert "not registered" in text
    assert "video" not in text
    assert "None" not in text
    assert "None" not in summary_markdown(bare)
    skipped = {"name": None, "version": None, "aliases": []}
    assert "not registered" in printed(summary_table(SUMMARY | {"model": skipped}, run))


def test_summary_markdown_rows_match_header() -> None:
    blocks = [b.splitlines() for b in summary_markdown(SUMMARY).split("\n\n") if b.startswith("|")]
    assert len(blocks) == 2
    for block in blocks:
        assert len({line.count("|") for line in block}) == 1
    assert "| greedy | 100 | 500.0 | 500.0 to 500.0 | 500.0 | 500.0 |" in blocks[0]
    assert "| random baseline | 100 | 22.3 | 20.1 to 24.5 | - | - |" in blocks[0]
    assert any("ppo-CartPole-v1 version 3" in line for line in blocks[1])


def test_show_escapes_control_characters_and_keeps_colors(printed: Printed) -> None:
    text = printed(Text("run \x1b[2J\u202e", "bold"), columns=60)
    assert "run \\x1b[2J\\u202e" in text
    assert text.startswith("\x1b[1m")


def test_document_escapes_control_characters() -> None:
    assert "<p>a\\x1b[2J</p>" in document("Title", "<p>a\x1b[2J</p>")
