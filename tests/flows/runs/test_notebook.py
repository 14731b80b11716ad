from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path

import pytest

from flows.runs.listeners import emit
from flows.runs.notebook import RunSummary, notebook_progress
from rlcore.store.directory import RunDirectory
from rlcore.system import notebook
from tests.flows.synthetic_runs import TOTALS, synthetic_run, train_a_while

RESULT = {"mean": 300.0, "ci95": [296.0, 304.0], "episodes": 2, "returns": [290.0, 310.0]}
SUMMARY = TOTALS | {
    "eval": {"greedy": RESULT, "stochastic": None},
    "baseline": RESULT | {"mean": 22.0, "ci95": [19.8, 24.2]},
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = synthetic_run(tmp_path / "run", "a")
    train_a_while(run, 0, 1000)
    return run


def test_summary_is_dict_of_results(run: RunDirectory) -> None:
    summary = RunSummary(SUMMARY, run)
    assert summary == SUMMARY
    assert json.loads(json.dumps(summary)) == SUMMARY
    assert copy.deepcopy(summary) == pickle.loads(pickle.dumps(summary)) == SUMMARY
    assert repr(summary) == repr(SUMMARY)


def test_summary_shows_returns_and_curve(run: RunDirectory) -> None:
    summary = RunSummary(SUMMARY, run)
    picture = summary._repr_png_()
    assert picture is not None and picture.startswith(b"\x89PNG")
    shown = summary._repr_html_()
    assert shown is not None
    assert "<h4>PPO on CartPole-v1, seed 5</h4>" in shown
    assert "<td>greedy</td><td>2</td><td>300.0</td><td>296.0 to 304.0</td><td>290.0</td><td>310.0</td>" in shown
    assert "<td>random baseline</td>" in shown
    assert shown.count('<img width="800" src="data:image/png;base64,iVBOR') == 1


def test_summary_of_removed_run_shows_only_returns(run: RunDirectory) -> None:
    summary = RunSummary(SUMMARY, run)
    shutil.rmtree(run.path)
    assert summary._repr_png_() is None
    assert "<td>greedy</td>" in (summary._repr_html_() or "")
    assert "<img" not in (summary._repr_html_() or "")
    assert RunSummary({}, run)._repr_html_() is None


def test_notebook_progress_shows_bar_and_evaluations(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    with notebook_progress(run):
        facts = {"policy_steps": 2048, "return": 31.5, "elapsed": 1.0, "total_steps": 4000, "updates": 3}
        emit("progress", facts)
        emit("evaluation", {"policy_steps": 2048, "final": False, "greedy": RESULT})
    printed = capsys.readouterr()
    assert printed.out == "evaluation at 2,048 policy steps: greedy 300.0 [296.0, 304.0] over 2 episodes\n"
    assert "2048/4000" in printed.err
    assert "return 31.5" in printed.err


def test_notebook_progress_prints_nothing_in_script(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with notebook_progress(run):
        emit("evaluation", {"policy_steps": 2048, "final": False, "greedy": RESULT})
    assert capsys.readouterr() == ("", "")
