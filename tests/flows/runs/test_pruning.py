"""Runs that a pruner evaluates, as trials of a sweep."""

from __future__ import annotations

from pathlib import Path

from flows.runs.pruning import prune_by
from flows.stages.summary import summary
from tests.flows.synthetic_runs import checkpointed_run


def test_summary_draws_no_picture_of_trial(tmp_path: Path) -> None:
    run = checkpointed_run(tmp_path / "run", "run", weights=1)
    with prune_by(lambda run, at: False):
        summary(run)
    assert run.summary.exists() and not run.curve.exists()
    summary(run)
    assert run.curve.exists()
