"""Check of a trial's folder against the parameters of the trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config.compose import compose
from flows.runs.create import create_run
from flows.sweep import start
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import Job
from flows.sweeps.plan import merge
from rlcore.errors import UserError
from tests.flows.sweeps.fake import FakeExecutor, make_sweep


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setenv("SHEPHERD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder: SweepFolder = make_sweep(tmp_path, "mine", "sweep.trials=3", "sweep.sampler=random")[0]
    sweep = Sweep(folder, folder.read())
    sweep.executor = FakeExecutor(sweep, 2, 0)
    assert sweep.study.ask() == 0
    return sweep


def create_trial_run(job: Job, *changed: str) -> None:
    """Create the run in a job's folder, with changed overrides."""
    line = merge(job.trainings[0].overrides, changed)
    create_run(*compose(line), line)


def test_start_accepts_folder_of_same_trial(sweep: Sweep) -> None:
    job = sweep.job(0)
    create_trial_run(job, "metric.log_every=77", "num_threads=2")  # keys without effect on learning and evaluation
    start(sweep, job)
    assert sweep.executor.busy


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            "algo.optimizer.lr=0.0024",
            r"^algo.optimizer.lr=\S+: run mine/trial_0000/seed_\d+ was trained with algo\S+=0.0024, so",
        ),
        (
            "evaluation.episodes=3",
            r"^evaluation.episodes=10: .* was trained with evaluation.episodes=3, so it does not belong to trial 0 of",
        ),
    ],
)
def test_start_refuses_folder_of_other_config(sweep: Sweep, changed: str, message: str) -> None:
    job = sweep.job(0)
    create_trial_run(job, changed)
    with pytest.raises(UserError, match=message):
        start(sweep, job)
    assert not sweep.executor.busy


def test_start_recognizes_alias_of_initial_weights(sweep: Sweep, tmp_path: Path) -> None:
    job = sweep.job(0)
    line = job.trainings[0].overrides
    alias = "models:/ppo-CartPole-v1@champion"
    source = {"given": alias, "uri": alias, "path": str(tmp_path / "kept"), "digest": "d"}
    create_run(*compose([*line, f"init_from={tmp_path / 'kept'}"]), line, {"init_from": source})
    job.trainings[0] = type(job.trainings[0])(job.trainings[0].run_dir, (*line, f"init_from={alias}"))
    start(sweep, job)
    assert sweep.executor.busy
