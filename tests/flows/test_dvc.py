"""The stages of dvc.yaml in a separate repository, with the real `dvc` command and a real kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.process.parents import LOOK_EVERY
from flows.runs.diff import diff
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests import processes
from tests.retries import run_command
from tests.soaking import always, heavy, soak
from tests.stores import furnish

pytestmark = [pytest.mark.slow, heavy]
STAGES = ["make-env", "collect", "train", "evaluate", "register-model"]
CARTPOLE, ACROBOT = ([f"{stage}@{env}" for stage in STAGES] for env in ("CartPole-v1", "Acrobot-v1"))
SMALL = {
    "  total_steps: 65536": "  total_steps: 4096",
    "  compile: auto": "  compile: false",
    "  rollout_steps: 128": "  rollout_steps: 64",
    "  update_epochs: 10": "  update_epochs: 2",
    "  capture_video: true": "  capture_video: false",
    "  episodes: 10": "  episodes: 2",
    "  baseline_episodes: 100": "  baseline_episodes: 5",
    "  final_episodes: 100": "  final_episodes: 5",
    "anneal_lr: true": "anneal_lr: false",
}


class Repository:
    """A git repository with the dvc.yaml of the project and small parameters."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder.parent / "home"
        self.run = RunDirectory(folder / "runs/dvc/CartPole-v1")
        self.variables: dict[str, str] = {}  # of its commands

    def make(self) -> None:
        self.folder.mkdir()
        self.home.mkdir()
        for name in ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/.gitignore"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(processes.ROOT / name, self.folder / name)
        shutil.copytree(processes.ROOT / "rlcore", self.folder / "rlcore", ignore=shutil.ignore_patterns("__pycache__"))
        for old, new in SMALL.items():
            self.set(old, new)
        for command in ("init -q", "config user.name Test", "config user.email test@example.org"):
            self.git(command)
        self.commit()

    def set(self, old: str, new: str) -> None:
        """Edit params.yaml."""
        params = self.folder / "params.yaml"
        text = params.read_text()
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        params.write_text(text.replace(old, new))

    def git(self, command: str) -> str:
        return self._run("git", *command.split())

    def commit(self) -> None:
        self.git("add --all")
        self.git("commit -q -m test")

    def dvc(self, *words: str) -> str:
        return self._run(str(Path(sys.executable).with_name("dvc")), *words)

    def environment(self) -> dict[str, str]:
        here = str(Path(sys.executable).parent)
        own = {"PATH": here + os.pathsep + os.environ["PATH"], "DVC_NO_ANALYTICS": "1", "HOME": str(self.home)}
        return processes.environment(self.home, **own, **self.variables)

    def begin(self, target: str) -> subprocess.Popen[bytes]:
        """Start `dvc repro TARGET` in a new process group."""
        return subprocess.Popen(
            [str(Path(sys.executable).with_name("dvc")), "repro", target],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def repro(self, stage: str = CARTPOLE[-1]) -> list[str]:
        """Run `dvc repro` of a stage (default: the last one) and return the stages that it ran."""
        return re.findall(r"Running stage '(.+)'", self.dvc("repro", stage))

    def _run(self, *command: str) -> str:
        self.home.mkdir(exist_ok=True)
        done = run_command(command, cwd=self.folder, env=self.environment(), text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repo = Repository(tmp_path_factory.mktemp("dvc") / "checkout")
    repo.make()
    return repo


@pytest.fixture(scope="module")
def repository(checkout: Repository) -> Repository:
    """The same repository, after `dvc repro` of all stages."""
    furnish(checkout.home)
    assert checkout.repro() == CARTPOLE
    checkout.commit()
    return checkout


@pytest.fixture
def again(repository: Repository) -> Repository:
    """The repository; its parameters are restored after the test."""
    yield repository
    repository.git("checkout -q params.yaml")
    repository.variables.clear()


def metrics(run: RunDirectory) -> dict[str, Any]:
    return json.loads((run.path / "results/metrics.json").read_text())


def test_dvc_second_repro_runs_no_stage(repository: Repository) -> None:
    assert "up to date" in repository.dvc("repro", "register-model@CartPole-v1")
    assert repository.git("status --porcelain") == ""  # git ignores the outputs of the stages
    shown = json.loads(repository.dvc("metrics", "show", "--json", "runs/dvc/CartPole-v1/results/metrics.json"))
    data = shown[""]["data"]["runs/dvc/CartPole-v1/results/metrics.json"]["data"]
    assert data == metrics(repository.run)
    summary = repository.run.read_summary()
    assert data["greedy"]["mean"] == summary["eval"]["greedy"]["mean"]
    model = json.loads((repository.run.path / "results/model.json").read_text())
    assert (model["name"], model["version"]) == ("ppo-CartPole-v1", 1)
    assert summary["model"]["version"] == 1


@always
def test_dvc_stages_are_same_for_each_environment(checkout: Repository) -> None:
    listed = checkout.dvc("stage", "list", "--name-only").split()
    assert sorted(listed) == sorted([*CARTPOLE, *ACROBOT])


def test_dvc_plots_show_curve_and_evaluations(repository: Repository) -> None:
    repository.dvc("plots", "show", "--out", "../plots")
    page = (repository.folder.parent / "plots/index.html").read_text()
    rows = (repository.run.path / "results/training.csv").read_text().splitlines()
    assert rows[0] == "policy_steps,episode_return,episode_length"
    assert len(rows) > 2
    assert all(f'"episode_return": "{row.split(",")[1]}"' in page for row in rows[1:])
    evaluation_rows = (repository.run.path / "results/evaluations.csv").read_text().splitlines()[1:]
    assert evaluation_rows
    assert all(f'"greedy_mean": "{row.split(",")[1]}"' in page for row in evaluation_rows)
    assert "learning_curve.png" in page
    assert "CartPole-v1: return while training" in page


def test_dvc_forced_repro_gives_same_digest(repository: Repository, tmp_path: Path) -> None:
    for path in (repository.run.checkpoints, repository.run.events):
        shutil.move(path, tmp_path / path.name)
    before = next(checkpoint.newest_first(tmp_path / "checkpoints"))
    repository.dvc("repro", "--force", "--single-item", "train@CartPole-v1")
    assert [e["kind"] for e in read_events(repository.run.events)].count("resume") == 0
    after = repository.run.checkpoints / before.name
    assert checkpoint.manifest(after)["digest"] == checkpoint.manifest(before)["digest"]
    shutil.copy(tmp_path / "events.jsonl", repository.run.events)  # with the baseline and the last evaluation


@soak
def test_dvc_repro_sets_aside_stale_run_and_resumes(again: Repository) -> None:
    before, old = metrics(again.run), again.run.read_identity()["run_id"]
    again.set("    lr: 0.001", "    lr: 0.003")
    assert "algo.optimizer.lr" in again.dvc("params", "diff")
    assert again.repro(CARTPOLE[3]) == CARTPOLE[2:4]  # the environment and its baseline are the same
    assert again.run.read_config()["algo"]["optimizer"]["lr"] == 0.003
    compared = json.loads(again.dvc("metrics", "diff", "--json"))["runs/dvc/CartPole-v1/results/metrics.json"]
    changed = compared["greedy.mean"] if "greedy.mean" in compared else compared["stochastic.mean"]
    now = metrics(again.run)
    assert (changed["old"], changed["new"]) in [(before[m]["mean"], now[m]["mean"]) for m in ("greedy", "stochastic")]
    aside = RunDirectory(again.run.path / "set_aside" / old)
    assert aside.read_config()["algo"]["optimizer"]["lr"] == 0.001
    assert json.loads((aside.path / "results/metrics.json").read_text()) == before
    assert aside.read_baseline() == again.run.read_baseline()
    # Again with the committed parameters; only DVC is killed meanwhile. The digest is that of the run set aside.
    again.git("checkout -q params.yaml")
    current = again.run.read_identity()["run_id"]
    killed = again.begin("train@CartPole-v1")

    def under_way() -> bool:
        fresh = again.run.config.exists() and again.run.read_identity()["run_id"] != current
        return fresh and processes.count(again.run, "checkpoint") >= 2

    processes.wait_for(under_way, "a checkpoint of the new run", 300)
    trainer = processes.one(again.home, "trainer")
    os.kill(trainer, signal.SIGSTOP)  # else it may finish before its stage checks whether DVC runs
    killed.kill()
    killed.wait()
    time.sleep(2 * LOOK_EVERY)
    os.kill(trainer, signal.SIGCONT)
    processes.wait_for(lambda: not processes.processes(again.home), "the end of the stage", 60)
    again.run.refuse_second_writer()
    events = list(read_events(again.run.events))
    assert [e["status"] for e in events if e["kind"] == "end"] == ["interrupted"]
    saved = max(e["policy_steps"] for e in events if e["kind"] == "checkpoint")
    again.dvc("repro", "train@CartPole-v1")
    assert [e["policy_steps"] for e in read_events(again.run.events) if e["kind"] == "resume"] == [saved]
    assert diff(str(aside.path), str(again.run.path)) == 0


@soak
def test_dvc_experiment_updates_dependent_parameters(again: Repository, tmp_path: Path) -> None:
    again.dvc("exp", "run", "--queue", "--name", "wide", "-S", "algo.dense_units=32", "evaluate@CartPole-v1")
    again.dvc("exp", "run", "--run-all", "--jobs", "1", "evaluate@CartPole-v1")
    assert "Success" in again.dvc("queue", "status")
    again.dvc("get", ".", "runs/dvc/CartPole-v1/results/policy", "--rev", "wide", "--out", str(tmp_path / "policy"))
    policy = json.loads((tmp_path / "policy/policy.json").read_text())
    assert policy["algo"]["actor"]["dense_units"] == 32  # actor.dense_units is ${algo.dense_units}


def test_dvc_push_and_pull_share_results(repository: Repository, tmp_path: Path) -> None:
    kept = [stage for stage in CARTPOLE if not stage.startswith("train")]  # checkpoints are not in the cache
    repository.dvc("checkout", "--force", *kept)
    repository.dvc("remote", "add", "--default", "store", str(tmp_path / "store"))
    repository.dvc("push")
    repository.commit()
    repository.git(f"clone -q . {tmp_path / 'elsewhere'}")
    other = Repository(tmp_path / "elsewhere")
    other.dvc("pull", *kept)
    assert metrics(other.run) == metrics(repository.run)
    from flows import load_policy

    assert load_policy(other.run.path / "results/policy").predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_dvc_extends_run_with_callback(again: Repository) -> None:
    """The last test of this file, because it replaces the run. The source is a copy of that run."""
    again.variables["SHEPHERD_PLUGINS"] = "tests.probes.callbacks"
    source = RunDirectory(again.folder.parent / "source")
    shutil.copytree(again.run.path, source.path)
    again.set("  total_steps: 4096", "  total_steps: 6144")
    again.set("  extend_from: null", f"  extend_from: {source.path}")
    again.set("callbacks: []", "callbacks: ['tests.probes.callbacks:Recorder']")
    changed = json.loads(again.dvc("params", "diff", "--json"))["params.yaml"]
    assert {"algo.total_steps", "checkpoint.extend_from", "callbacks"} <= changed.keys()
    assert again.repro(CARTPOLE[2])[-1] == CARTPOLE[2]
    origin = again.run.read_identity()["extend_from"]
    assert (origin["run_id"], origin["policy_steps"]) == (source.read_identity()["run_id"], 4096)
    assert checkpoint.resolve(again.run, "latest").name == "6144"
    assert [e["method"] for e in read_events(again.run.events) if e["kind"] == "callback"][-1] == "on_end"
    assert again.repro(CARTPOLE[2]) == []
