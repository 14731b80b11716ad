"""Runs of a group, and refused overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.sweeps.group_runs import group_of, has_several
from flows.sweeps.jobs import End, Job
from rlcore.errors import RunError, UserError


def test_group_of_creates_one_run_per_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group = group_of(["exp=ppo", "seed=0,1,2", "group=mine"], workers=8)
    places = [training.run_dir.relative_to(tmp_path) for training in group.trainings]
    assert places == [Path(f"runs/ppo/CartPole-v1/mine/seed={seed}") for seed in (0, 1, 2)]
    assert group.workers == 3  # at most the number of runs
    assert {training.state for training in group.trainings} == {"new"}


def test_group_of_combines_several_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group = group_of(["exp=ppo", "algo.gamma=0.9,0.99", "seed=range(2)", "group=grid"])
    names = [training.run_dir.name for training in group.trainings]
    assert names == ["gamma=0.9,seed=0", "gamma=0.9,seed=1", "gamma=0.99,seed=0", "gamma=0.99,seed=1"]


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["exp=ppo", "seed=0,1"], ["seed=0,1", "group=NAME", "seed=[0,1]"]),
        (["exp=ppo", "seed=0,1", "group=g", "run_dir=x"], ["run_dir=x", "cannot be set for a group"]),
        (["exp=ppo", "algo.gamma=interval(0.9,1)", "group=g"], ["algo.gamma=interval(0.9,1)", "shepherd sweep"]),
        (["exp=ppo", "seed=0,1", "group=g", "algo.gamma=2"], ["algo.gamma=2"]),
        (["exp=ppo", "env.id=CartPole-v1,CartPool-v1", "group=g"], ["CartPool-v1"]),
    ],
)
def test_group_of_refuses_mistake_without_changes(
    overrides: list[str], messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        group_of(overrides)
    assert all(message in str(error.value) for message in messages), str(error.value)
    assert not (tmp_path / "runs").exists()


def test_has_several_requires_several_values() -> None:
    assert not has_several(["exp=ppo", "seed=3", "algo.mlp_keys.encoder=[a,b]"])
    assert has_several(["exp=ppo", "seed=3,4"])
    assert has_several(["exp=ppo", "env=dmc", "seed=3,4"])  # composition of the configs reports the mistake


def test_run_jobs_continues_after_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.sweeps.group_runs import run_jobs

    monkeypatch.chdir(tmp_path)
    group = group_of(["exp=ppo", "seed=0,1,2", "group=mine"], workers=2)
    running: list[Job] = []
    done: list[str] = []

    class SerialExecutor:
        @property
        def free(self) -> bool:
            return len(running) < 2

        @property
        def busy(self) -> bool:
            return bool(running)

        def start(self, job: Job) -> None:
            running.append(job)

        def wait(self) -> tuple[Job, End]:
            done.append(running[0].label)
            return running.pop(0), End("failed", "no luck") if len(done) == 1 else End("over")

    executor = SerialExecutor()
    with pytest.raises(RunError, match=r"1 of 3 runs of group mine failed; seed=0: no luck"):
        for job in run_jobs(group, executor):
            executor.start(job)
    assert done == ["seed=0", "seed=1", "seed=2"]
