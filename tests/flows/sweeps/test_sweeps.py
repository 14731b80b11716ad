"""Sweeps and groups with real worker processes, trainers, Prefect and SQLite, killed and resumed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.cli import sweep_command as command
from flows.config.compose import compose
from flows.sweeps.group_runs import group_of
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from tests.processes import NO_STORE, count, digest_of, end, kill_all, orphans, send, start, wait_for
from tests.retries import output_of
from tests.soaking import always, heavy
from tests.stores import furnish, standing_api

pytestmark = [pytest.mark.slow, heavy]
TINY = [
    "exp=ppo",
    "env.num_envs=2",
    "algo.per_rank_batch_size=32",
    "algo.update_epochs=1",
    "evaluation.every=256",
    "evaluation.episodes=2",
    "evaluation.num_envs=2",
    "env.step_timeout=600",
]
LONG = "algo.total_steps=2048"  # long enough (seconds) for a kill during training
SPACE = ["algo.optimizer.lr=tag(log,interval(1e-5,1e-1))", "algo.rollout_steps=choice(32,64)"]
SWEEP = ["sweep.trials=3", "sweep.workers=2", "sweep.batch=2", "sweep.startup=1", "sweep.warmup=1"]
WHOLE, KILLED = "whole", "killed"


def sweep(name: str) -> list[str]:
    return ["sweep", *TINY, LONG, *SPACE, *SWEEP, f"sweep.name={name}", "sweep.confirm_seeds=0", "sweep.sampler=random"]


def start_command(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a home, with a running Prefect server and without an MLflow store."""
    return start(home, *words, **NO_STORE, **standing_api())


def status(home: Path, name: str) -> dict[str, Any]:
    """Return the output of `shepherd sweep status NAME --json`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEPHERD_HOME", str(home))
        printed = command.status(name, as_json=True)
    assert printed is not None
    return json.loads(printed)


def runs(home: Path, name: str) -> dict[str, RunDirectory]:
    found = (home / "runs/sweeps" / name).glob("trial_*/seed_*/run.json")
    return {path.parent.parent.name: RunDirectory(path.parent) for path in found}


def checkpoints(home: Path) -> dict[str, int]:
    return {name: count(run, "checkpoint") for name, run in runs(home, KILLED).items()}


def pid_after_checkpoint(home: Path, file: str) -> int:
    """Return the pid of a run's trainer (file `lock`) or worker (`.driver`) after the run's next checkpoint."""
    before = checkpoints(home)

    def holder() -> int | None:
        for name, run in runs(home, KILLED).items():
            if count(run, "checkpoint") > before.get(name, 0) and not count(run, "end") and run.is_taken():
                noted = re.match(r"pid (\d+)", (run.path / file).read_text())
                if noted and psutil.pid_exists(int(noted[1])):
                    return int(noted[1])
        return None

    return wait_for(holder, f"{file} of a run that has another checkpoint")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a home with a sweep without interruption."""
    folder = tmp_path_factory.mktemp("site")
    furnish(folder)
    process = start_command(folder, *sweep(WHOLE))
    assert end(process)[0] == 0
    yield folder
    kill_all(folder)


@pytest.fixture(scope="module")
def site(undisturbed: Path) -> Path:
    """Return the same home, with a second sweep that was resumed after kills of trainer, worker and driver."""
    folder = undisturbed
    process = start_command(folder, *sweep(KILLED))
    for file in ("lock", ".driver"):
        send(pid_after_checkpoint(folder, file), signal.SIGKILL)
    pid_after_checkpoint(folder, "lock")
    process.kill()
    process.communicate()
    assert orphans(folder, 10.0) == []
    process = start_command(folder, "sweep", "resume", KILLED)
    code, output = end(process)
    assert code == 0, output
    return folder


def test_sweep_is_unchanged_by_kills(site: Path) -> None:
    whole, killed = status(site, WHOLE), status(site, KILLED)
    assert [trial["number"] for trial in killed["trials"]] == [0, 1, 2]
    assert killed["trials"] == whole["trials"]
    assert killed["best"] == whole["best"] and whole["best"] is not None
    assert all(trial["policy_steps"] > 0 for trial in whole["trials"])
    others = runs(site, WHOLE)
    for name, run in runs(site, KILLED).items():
        assert digest_of(run) == digest_of(others[name]), name


def test_killed_trial_resumes_from_checkpoint(site: Path) -> None:
    """Each kill causes a resume event."""
    from rlcore.store.events import read_events

    resumed = [
        e["policy_steps"] for r in runs(site, KILLED).values() for e in read_events(r.events) if e["kind"] == "resume"
    ]
    assert len(resumed) >= 2
    assert max(resumed) > 0
    assert not [e for r in runs(site, WHOLE).values() for e in read_events(r.events) if e["kind"] == "resume"]


def test_trial_has_status_and_checkpoint(site: Path) -> None:
    states = {trial["number"]: trial["state"] for trial in status(site, WHOLE)["trials"]}
    for number, state in states.items():
        run = runs(site, WHOLE)[f"trial_{number:04d}"]
        assert run.read_summary()["status"] == {"complete": "finished", "pruned": "pruned"}[state]
        assert run.read_summary()["model"] is None
        assert (run.path / run.read_summary()["checkpoint"]).is_dir()


@always
def test_sweep_leaves_page_and_preset(undisturbed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = undisturbed / "runs/sweeps" / WHOLE
    best = status(undisturbed, WHOLE)["best"]
    page = (folder / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert f"exp={WHOLE}_best" in page
    monkeypatch.setenv("SHEPHERD_SEARCH_PATH", str(folder / "conf"))
    config, _ = compose([f"exp={WHOLE}_best"])
    assert config.algo.optimizer.lr == best["params"]["algo.optimizer.lr"]
    assert config.algo.rollout_steps == best["params"]["algo.rollout_steps"]


def test_killed_group_resumes_unfinished_runs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", *TINY, "algo.total_steps=256", "seed=5,6", "group=pair", "model_manager.disabled=true"]
    small = ["evaluation.final_episodes=2", "evaluation.baseline_episodes=2", "env.capture_video=false"]
    process = start_command(site, *words, *small)
    folder = site / "runs/ppo/CartPole-v1/pair"
    wait_for(lambda: (folder / "seed=5/summary.json").exists() or (folder / "seed=6/summary.json").exists(), "one")
    process.kill()
    process.communicate()
    assert orphans(site, 10.0) == []
    process = start_command(site, *words, *small)
    output, said = output_of(process)
    assert process.returncode == 0, said
    assert "tensorboard --logdir runs/ppo/CartPole-v1/pair" in output  # a killed run may have no files
    for seed in (5, 6):
        run = RunDirectory(folder / f"seed={seed}")
        assert run.read_summary()["status"] == "finished" and run.read_summary()["eval"]["greedy"]
        assert run.read_config()["group"] == "pair" and run.read_config()["seed"] == seed
    monkeypatch.chdir(site)
    with pytest.raises(UserError, match=r"algo.gamma=0.5: .*seed=5 of group pair was trained with algo.gamma=0.99"):
        group_of([*words[1:], *small, "algo.gamma=0.5"])


def test_failed_trial_reports_message_and_sweep_continues(site: Path) -> None:
    """A learning rate that makes the weights infinite fails at once, because a retry would fail too."""
    lr, name = "algo.optimizer.lr=choice(1e-3,1e30)", "broken"
    words = [
        "sweep",
        *TINY,
        "algo.total_steps=768",
        lr,
        "sweep.sampler=grid",
        f"sweep.name={name}",
        "sweep.confirm_seeds=0",
        "logger=tensorboard",
    ]
    process = start_command(site, *words)
    output, said = output_of(process)
    assert process.returncode == 0 and "tensorboard --logdir runs/sweeps/broken" in output, said
    by_value = {trial["params"]["algo.optimizer.lr"]: trial for trial in status(site, name)["trials"]}
    assert by_value[1e-3]["state"] == "complete" and status(site, name)["best"] == by_value[1e-3]
    assert by_value[1e30]["state"] == "fail" and "not finite" in by_value[1e30]["sentence"]


GRID = ["algo.optimizer.lr=choice(1e-4,1e-3)", "sweep.sampler=grid", "sweep.workers=2", "evaluation.final_episodes=2"]
PROBES = {"SHEPHERD_PLUGINS": "tests.probes.envs,tests.probes.callbacks"}


def start_with_plugins(home: Path, *words: str) -> tuple[int, str]:
    return end(start(home, "sweep", *words, *GRID, **NO_STORE, **standing_api(), **PROBES))


def test_sweep_extends_run_and_maximizes_metric_of_callback(undisturbed: Path) -> None:
    """All trials start from a trial of another sweep. The callback logs the number of evaluations so far."""
    source = runs(undisturbed, WHOLE)["trial_0000"]
    own = [f"algo.rollout_steps={source.read_config()['algo']['rollout_steps']}", "sweep.budget=3072"]
    extends = f"checkpoint.extend_from={source.path}"
    judged = ["callbacks=[tests.probes.callbacks:Recorder]", "sweep.metric=Mine/evaluation", "sweep.objective=all"]
    name = ["sweep.name=further", "sweep.confirm_seeds=0"]
    code, output = start_with_plugins(undisturbed, *TINY, *own, extends, *judged, *name)
    assert code == 0, output
    for trial in status(undisturbed, "further")["trials"]:
        run = runs(undisturbed, "further")[f"trial_{trial['number']:04d}"]
        origin = run.read_identity()["extend_from"]
        assert (origin["run_id"], origin["policy_steps"]) == (source.read_identity()["run_id"], 2048)
        evaluations = count(run, "evaluation")
        assert evaluations >= 4 and trial["value"] == (evaluations + 1) / 2  # the mean of 1, 2, ...
        assert trial["state"] == "complete" and run.read_summary()["policy_steps"] == 3072


def test_sweep_maximizes_number_from_info(undisturbed: Path) -> None:
    """Each episode has the numbers 1 to 5, whose mean is 3."""
    env = ["env.id=known/Rank-v0", "env.info_keys=[age]", "algo.total_steps=512", "sweep.metric=age"]
    code, output = start_with_plugins(undisturbed, *TINY, *env, "sweep.name=aged", "sweep.confirm_seeds=1")
    assert code == 0, output
    found = status(undisturbed, "aged")
    assert [(trial["state"], trial["value"]) for trial in found["trials"]] == [("complete", 3.0)] * 2
    assert found["confirmed"]["values"] == {"winner": [3.0], "default": [3.0]}
    page = (undisturbed / "runs/sweeps/aged/report.html").read_text()
    assert "the mean age of the greedy policy" in page
