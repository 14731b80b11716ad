from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows import load_runs
from flows.runs.run_list import list_runs
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import synthetic_run, train_a_while
from tests.processes import ROOT, environment

LR = "algo.optimizer.lr"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDirectory, RunDirectory]:
    """A finished run of the group `low`, and one that has only started, in `runs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHEPHERD_RUN_ROOT", raising=False)
    finished = synthetic_run(tmp_path / "runs/a", "a", group="low")
    train_a_while(finished, 100, 400, 100)
    log = EventLog(finished.events)
    result = {"mean": 3.0, "std": 1.0, "ci95": [2.0, 4.0], "episodes": 2}
    log.append("evaluation", policy_steps=200, final=False, greedy=result)
    log.append("end", status="finished", policy_steps=300, reason="finished")
    write_json(finished.summary, {"updates": 12, "wall_s": 2.5, "eval": {"greedy": result, "stochastic": None}})
    return finished, synthetic_run(tmp_path / "runs/b", "b")


def test_summaries_have_results_and_config_keys(runs: tuple[RunDirectory, RunDirectory]) -> None:
    summaries, _ = load_runs(keys=[LR])
    assert summaries.index.name == "run"
    assert set(summaries.index) == {"runs/a", "runs/b"}
    row = summaries.loc["runs/a"]
    wanted = {"status": "finished", "policy_steps": 300, "group": "low", "updates": 12, "greedy": 3.0, LR: 1e-3}
    assert row[list(wanted)].to_dict() == wanted
    assert (row["greedy_low"], row["greedy_high"]) == (2.0, 4.0)
    assert summaries["stochastic"].isna().all()
    assert summaries.loc["runs/b", "status"] == "died"
    assert summaries["created"].dt.year.min() >= 2026


def test_curves_have_one_column_for_each_metric(runs: tuple[RunDirectory, RunDirectory]) -> None:
    curves = load_runs("low").curves
    assert curves.index.names == ["run", "policy_steps"]
    assert curves.loc["runs/a", "Rewards/rew_avg"].to_dict() == {100: 100.0, 200: 200.0, 300: 300.0}
    assert curves.loc["runs/a", "Evaluation/greedy_mean"].dropna().to_dict() == {200: 3.0}
    chosen = load_runs("low", metrics=["Evaluation/greedy_mean"]).curves
    assert list(chosen.columns) == ["Evaluation/greedy_mean"]
    assert len(chosen) == 1
    both = load_runs("low", metrics=["Rewards/rew_avg", "Loss/none"]).curves
    assert list(both.columns) == ["Rewards/rew_avg", "Loss/none"]


def test_run_with_damaged_config_does_not_hide_others(
    runs: tuple[RunDirectory, RunDirectory], caplog: pytest.LogCaptureFixture
) -> None:
    runs[1].config.write_text("algo: [")
    assert list(load_runs(keys=[LR]).summaries.index) == ["runs/a"]
    assert "runs/b/config.yaml" in caplog.text


def test_frames_of_no_runs_are_empty(tmp_path: Path) -> None:
    summaries, curves = load_runs(runs=tmp_path / "nowhere")
    assert (len(summaries), len(curves)) == (0, 0)
    assert "status" in summaries.columns


def test_unknown_config_key_is_refused(runs: tuple[RunDirectory, RunDirectory]) -> None:
    with pytest.raises(UserError, match="keys=algo.lrr: no run has this config key"):
        load_runs(keys=["algo.lrr"])


def test_import_of_flows_does_not_import_pandas() -> None:
    code = "import flows, flows.cli.runs_command, sys; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=environment(ROOT), check=True)


def test_numbers_from_info_are_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHEPHERD_RUN_ROOT", raising=False)
    run, won = synthetic_run(tmp_path / "runs/a", "a"), {"mean": 0.5, "ci95": [0.25, 0.75], "episodes": 2}
    result = {"mean": 3.0, "std": 1.0, "ci95": [2.0, 4.0], "episodes": 2, "info": {"won": won}}
    log = EventLog(run.events)
    log.append("metrics", policy_steps=100, values={"Game/won": 0.4})
    log.append("evaluation", policy_steps=200, final=False, greedy=result)
    write_json(run.summary, {"updates": 1, "eval": {"greedy": result, "stochastic": None}, "baseline": result})
    synthetic_run(tmp_path / "runs/b", "b")
    summaries, curves = load_runs(keys=[LR])
    assert list(summaries.columns[-7:]) == [
        f"{m}_won{e}" for m in ("greedy", "baseline") for e in ("", "_low", "_high")
    ] + [LR]
    assert summaries.loc["runs/a", ["greedy_won", "greedy_won_low", "baseline_won_high"]].tolist() == [0.5, 0.25, 0.75]
    assert summaries["greedy_won"].isna()["runs/b"]
    assert curves.loc["runs/a", "Game/won"].dropna().to_dict() == {100: 0.4}
    assert curves.loc["runs/a", "Evaluation/greedy_won"].dropna().to_dict() == {200: 0.5}
    assert [one.as_json(0.0)["info"] for one in list_runs("", "runs")] == [{}, {"won": 0.5}]
