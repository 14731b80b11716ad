"""Commands of `shepherd`, as users type them.

Whole trainings, signals and one mistake run in processes. Most other tests call `main` in this process, because the
imports of a process take seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from flows import load_policy
from flows.cli import main as cli
from flows.config.yaml_files import presets
from flows.report.command_lines import bin_folder
from flows.tracking.backends import update_backends
from rlcore.errors import DiskFault
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests import processes
from tests.retries import output_of, run_command
from tests.stores import standing_api

ROOT = Path(__file__).resolve().parents[3]
TINY = [
    "exp=ppo",
    "algo.total_steps=6000",
    "algo.rollout_steps=32",
    "algo.update_epochs=2",
    "evaluation.episodes=3",
    "evaluation.final_episodes=5",
    "evaluation.baseline_episodes=5",
    "checkpoint.every=1000",
]


def shepherd(where: Path, *arguments: str, home: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        processes.shepherd(*arguments),
        cwd=where,
        env=processes.environment(home or where, **standing_api(), **more),
        text=True,
    )


# Runs a command and writes the imported modules to a file.
RECORD_IMPORTS = (
    "import sys; from flows.cli.main import main; code = main();"
    "open('imported', 'w').write('\\n'.join(sys.modules)); sys.exit(code)"
)
Command = Callable[..., subprocess.CompletedProcess[str]]


def assert_one_sentence(done: subprocess.CompletedProcess[str], words: str) -> None:
    """Check that the command ended with exit code 2 and one line that contains the words."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert words in done.stderr


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, in the module's home. Stages update MLflow without delay."""
    monkeypatch.chdir(home)
    monkeypatch.setattr("flows.cli.stage.mirror_in_background", lambda run, every=0.0, last=False: update_backends(run))
    monkeypatch.setattr("flows.cli.stage.finish_mirror", update_backends)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = cli.main(arguments)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@dataclass(frozen=True)
class Trained:
    """Exit code and output of a training that Ctrl-C ended, and the `shepherd resume` that finished it."""

    run: RunDirectory
    code: int
    output: str
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def trained(home: Path) -> Trained:
    run = RunDirectory(home / "runs/one")
    process = processes.start(home, "train", *TINY, "seed=3", "run_dir=runs/one")
    processes.wait_for(lambda: processes.count(run, "checkpoint") or process.poll() is not None, "a checkpoint")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    output = output_of(process)[1]
    assert not processes.orphans(home)
    command = [sys.executable, "-c", RECORD_IMPORTS, "resume", "runs/one"]
    resumed = run_command(command, cwd=home, env=processes.environment(home, **standing_api()), text=True)
    return Trained(run, process.returncode, output, resumed)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm"),  # for the commands that are run in this process
    # MLflow causes warnings when it is used. Warnings of our own code are still errors.
    pytest.mark.filterwarnings("default", "error:::flows", "error:::rlcore"),
]


def test_resume_command_imports_no_torch(home: Path, trained: Trained) -> None:
    assert trained.resumed.returncode == 0, trained.resumed.stderr
    assert trained.run.read_summary()["model"]  # registered, which needs MLflow
    imported = set((home / "imported").read_text().split())
    assert "mlflow" in imported
    assert not {"torch", "lightning_fabric"} & imported


def test_train_saves_checkpoint_on_ctrl_c(trained: Trained) -> None:
    assert trained.code == 130, trained.output
    assert "shepherd resume runs/one" in trained.output
    assert "Traceback" not in trained.output
    events = list(read_events(trained.run.events))
    assert [e["status"] for e in events if e["kind"] == "end"] == ["interrupted", "finished"]
    begins = next(i for i, e in enumerate(events) if e["kind"] == "resume")
    saved = [e["policy_steps"] for e in events[:begins] if e["kind"] == "checkpoint"]
    assert events[begins]["policy_steps"] == saved[-1] < 6000


def test_train_prints_results_at_end(trained: Trained) -> None:
    run, done = trained.run, trained.resumed
    assert done.returncode == 0, done.stderr
    for words in ("greedy", "stochastic", "random baseline", "ppo-CartPole-v1 version 1", "shepherd enjoy runs/one"):
        assert words in done.stdout, words
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no control characters in a pipe
    for path in (run.curve, run.media / "policy.mp4", run.card, run.summary, run.dataset / "manifest.json"):
        assert path.stat().st_size > 100, path


def test_summary_contains_documented_fields(trained: Trained) -> None:
    summary = trained.run.read_summary()
    wanted = "run_id algo env_id seed policy_steps env_steps updates wall_s cpu_s policy_steps_per_s eval baseline"
    assert set(wanted.split()) | {"checkpoint", "model", "fingerprint"} <= set(summary)
    for mode in ("greedy", "stochastic"):
        result = summary["eval"][mode]
        assert {"mean", "std", "ci95", "episodes", "returns"} <= set(result)
        assert result["episodes"] == len(result["returns"]) == 5
        assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert summary["model"] == {"name": "ppo-CartPole-v1", "version": 1, "aliases": ["challenger", "champion"]} or (
        summary["model"]["aliases"] == ["challenger"]
    )
    assert 5000 < summary["policy_steps"] <= 6000
    assert summary["seed"] == 3


def test_run_directory_page_lists_every_file(trained: Trained) -> None:
    text = (ROOT / "docs/run_directory.md").read_text().split("```")[1]
    typed = [name for line in text.splitlines()[2:] for name in line[2:26].split("  ") if name.strip()]
    names = [re.sub("<.*>", "*", name.strip()) for name in typed]
    left = {str(path.relative_to(trained.run.path)) for path in trained.run.path.rglob("*") if path.is_file()}

    def has(name: str, path: str) -> bool:
        return fnmatch(path, f"{name}*" if name.endswith("/") else name)

    assert not [path for path in left if not any(has(name, path) for name in names)]
    others = {"code.diff", "checkpoints/chunks/", "metrics.csv", "original.json", "reproduction.json", "set_aside/*/"}
    others |= {".lease", ".prune", ".logger/", "wandb/"}  # written by other algorithms, loggers and commands
    assert {name for name in names if not any(has(name, path) for path in left)} <= others
    assert others <= set(names)


def test_train_reports_memory_of_all_processes(trained: Trained) -> None:
    assert "command, Prefect and MLflow" in (trained.run.path / "run.log").read_text()


def test_resume_reports_finished_run(trained: Trained, here: Command) -> None:
    done = here("resume", "runs/one")
    assert (done.returncode, "already finished" in done.stdout) == (0, True)


def test_resume_refuses_changed_learning_rate(trained: Trained, here: Command) -> None:
    before = trained.run.config.read_text()
    done = here("resume", "runs/one", "algo.optimizer.lr=0.5")
    assert done.returncode == 2
    assert "algo.optimizer.lr=0.5" in done.stderr
    assert "0.001" in done.stderr
    assert "init_from" in done.stderr
    assert trained.run.config.read_text() == before


def test_resume_refuses_run_with_active_trainer(trained: Trained, home: Path) -> None:
    before = trained.run.config.read_text()
    with trained.run.writing():
        done = shepherd(home, "resume", "runs/one", "evaluation.final_episodes=7")
    assert_one_sentence(done, f"pid {os.getpid()}")
    assert trained.run.config.read_text() == before


def test_train_refuses_existing_run_directory(trained: Trained, here: Command) -> None:
    done = here("train", *TINY, "run_dir=runs/one")
    assert done.returncode == 2
    assert "shepherd resume runs/one" in done.stderr


def test_evaluate_matches_final_evaluation_of_train(trained: Trained, here: Command) -> None:
    run = trained.run
    torch.set_num_threads(2)
    done = here("evaluate", "runs/one", "--episodes", "5")
    assert torch.get_num_threads() == 1  # as in training
    assert done.returncode == 0, done.stderr
    path = next(run.evaluations.glob("*-round1-5.json"))
    assert json.loads(path.read_text())["greedy"] == run.read_summary()["eval"]["greedy"]


@pytest.mark.parametrize("source", ["runs/one", "models:/ppo-CartPole-v1@challenger", "models:/ppo-CartPole-v1/1"])
def test_evaluate_accepts_runs_and_models(trained: Trained, here: Command, source: str) -> None:
    done = here("evaluate", source, "--episodes", "2")
    assert done.returncode == 0, done.stderr
    assert "greedy" in done.stdout


def test_evaluate_accepts_checkpoint_folder_only_once(trained: Trained, here: Command) -> None:
    path = checkpoint.resolve(trained.run, "latest")
    assert here("evaluate", str(path), "--episodes", "2").returncode == 0
    twice = here("evaluate", str(path), "--checkpoint", "best")
    assert (twice.returncode, "leave --checkpoint out" in twice.stderr) == (2, True)
    unknown = here("evaluate", "runs/one", "--checkpoint", "17")
    assert unknown.returncode == 2
    assert path.name in unknown.stderr


@pytest.mark.parametrize("source", ["runs/one", "models:/ppo-CartPole-v1@challenger"])
def test_export_writes_policy_of_runs_and_models(trained: Trained, here: Command, tmp_path: Path, source: str) -> None:
    done = here("export", source, "--torch", str(tmp_path / "new/policy.pt2"))
    assert done.returncode == 0, done.stderr
    assert "  state float32 [N, 4]\n" in done.stdout and "  action int64 [N]\n" in done.stdout
    assert "on 210 random observations: largest difference" in done.stdout
    state, module = torch.randn(7, 4), torch.export.load(tmp_path / "new/policy.pt2").module()
    assert module({"state": state})["action"].tolist() == load_policy(source).predict(state.numpy()).tolist()


def test_export_accepts_checkpoint_and_refuses_impossible(trained: Trained, here: Command, tmp_path: Path) -> None:
    latest, file = trained.run.read_summary()["policy_steps"], tmp_path / "policy.pt2"
    assert here("export", "runs/one", "--torch", str(file), "--checkpoint", str(latest)).returncode == 0
    extra = {"shepherd": ""}
    torch.export.load(file, extra_files=extra)
    assert json.loads(extra["shepherd"])["policy_steps"] == latest
    assert_one_sentence(here("export", "runs/one"), "add --onnx policy.onnx, --torch policy.pt2, or both")
    assert_one_sentence(here("export", "runs/none", "--torch", str(file)), "runs/none: contains no policy")


def test_init_from_loads_registered_model_and_records_source(trained: Trained, home: Path, here: Command) -> None:
    uri = "models:/ppo-CartPole-v1@challenger"
    wrong = here("stage", "make-env", "runs/warm", *TINY, "init_from=models:/ppo-CartPol@challenger")
    assert_one_sentence(wrong, "init_from=models:/ppo-CartPol@challenger: no model 'ppo-CartPol'")
    assert not (home / "runs/warm").exists()
    for name, *rest in (("make-env", *TINY, f"init_from={uri}"), ("checkpoint",)):
        done = here("stage", name, "runs/warm", *rest)
        assert done.returncode == 0, done.stderr
    warm, source = RunDirectory(home / "runs/warm"), checkpoint.choose(trained.run)
    ours, theirs = (checkpoint.load(path)[0] for path in (checkpoint.resolve(warm), source))
    name = "actor.layers.0.weight"
    assert (ours["learner"]["agent"][name] == theirs["learner"]["agent"][name]).all()
    kept = warm.read_identity()["init_from"]
    assert (kept["uri"], kept["digest"]) == (uri, checkpoint.manifest(source)["digest"])
    assert yaml.safe_load(warm.config.read_text())["init_from"] == kept["path"]
    assert (Path(kept["path"]) / "policy.json").exists()
    assert f"init_from={uri}" in warm.overrides.read_text()


def test_enjoy_without_display_records_video(trained: Trained, here: Command) -> None:
    done = here("enjoy", "runs/one")
    assert done.returncode == 0, done.stderr
    assert (trained.run.media / "enjoy.mp4").stat().st_size > 1000


def test_load_policy_predicts_actions(trained: Trained) -> None:
    policy = load_policy(trained.run.path)
    assert policy.predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert policy.predict(np.zeros((7, 4))).shape == (7,)


def test_stages_match_digest_of_resumed_train(trained: Trained, home: Path, here: Command) -> None:
    run = trained.run
    stages = [
        ("make-env", *TINY, "seed=3"),
        ("collect",),
        ("train",),
        ("checkpoint",),
        ("evaluate",),
        ("register-model",),
    ]
    for name, *rest in stages:
        done = here("stage", name, "runs/staged", *rest)
        assert done.returncode == 0, (name, done.stderr)
        assert isinstance(json.loads(done.stdout), dict)
    assert "tensorboard --logdir runs/staged/tensorboard\n" in done.stderr  # of the last stage
    staged = RunDirectory(home / "runs/staged")
    digests = [checkpoint.manifest(checkpoint.resolve(r, "latest"))["digest"] for r in (run, staged)]
    assert digests[0] == digests[1]
    # Equal checkpoints do not register a second version.
    assert staged.read_summary()["model"]["version"] == run.read_summary()["model"]["version"]


@pytest.mark.parametrize("command", ["train", "resume", "stage", "dvc repro"])
def test_full_disk_error_names_resume_command(
    home: Path, here: Command, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(*arguments: Any) -> None:
        raise DiskFault("checkpoint 512 could not be written (No space left on device)")

    folder = f"runs/full_{command.replace(' ', '_')}"
    typed, again = {
        "train": (["train", *TINY, f"run_dir={folder}"], f"{bin_folder()}shepherd resume {folder}"),
        "resume": (["resume", folder], f"{bin_folder()}shepherd resume {folder}"),
        "stage": (["stage", "train", folder], f"shepherd stage train {folder}"),
        "dvc repro": (["stage", "train", folder], "dvc repro"),
    }[command]
    if command != "train":
        assert here("stage", "make-env", folder, *TINY).returncode == 0
    if command == "dvc repro":
        monkeypatch.setenv("DVC_STAGE", "train")
        monkeypatch.setattr("flows.cli.stage.exit_with_parent", lambda *_, **__: nullcontext())  # no dvc runs this test
    monkeypatch.setattr("flows.train.run_flow", full)
    monkeypatch.setattr("flows.stages.train.train", full)
    done = here(*typed)
    sentence = "shepherd: failed: checkpoint 512 could not be written (No space left on device)"
    lines = [line for line in done.stderr.splitlines() if "No space left" in line]
    assert lines == [f"{sentence}; when the disk is writable again, continue with: {again}"]
    assert done.returncode == 1


def test_stages_before_training_work_or_name_prerequisite(home: Path, here: Command) -> None:
    assert here("stage", "make-env", "runs/fresh", *TINY).returncode == 0
    early = here("stage", "evaluate", "runs/fresh")
    assert_one_sentence(early, "no checkpoint yet")
    for name in ("checkpoint", "evaluate"):
        done = here("stage", name, "runs/fresh")
        assert done.returncode == 0, (name, done.stderr)
    summary = RunDirectory(home / "runs/fresh").read_summary()
    assert (summary["policy_steps"], summary["policy_steps_per_s"], summary["baseline"], summary["model"]) == (
        0,
        None,
        None,
        None,
    )
    assert summary["eval"]["greedy"]["episodes"] == 5
    evaluated = here("evaluate", "runs/fresh", "--episodes", "2")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "greedy" in evaluated.stdout
    assert "random baseline" not in evaluated.stdout
    (home / "runs/fresh/env_card.json").unlink()
    for name in ("collect", "train", "register-model"):
        early = here("stage", name, "runs/fresh")
        assert early.returncode == 2
        assert "shepherd stage make-env runs/fresh" in early.stderr


def test_stage_train_saves_on_ctrl_c_and_resumes(home: Path, here: Command) -> None:
    folder = "runs/signalled"
    # No checkpoint is due before the end, so the checkpoint found here was saved because of the signal.
    long = processes.changed(TINY, "algo.total_steps=12000", "checkpoint.every=12000", "evaluation.every=12000")
    assert here("stage", "make-env", folder, *long).returncode == 0
    process = processes.start(home, "stage", "train", folder, **processes.NO_STORE)
    assert process.stderr is not None
    output = ""
    while not output.rpartition("\n")[0].rpartition("\n")[2].startswith("train "):  # until training has started
        line = process.stderr.readline()
        assert line, output
        output += line
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    output += output_of(process)[1]
    assert process.returncode == 130, output
    assert time.monotonic() - begun < 25
    assert f"continue with: shepherd stage train {folder}" in output
    assert "Traceback" not in output
    run = RunDirectory(home / folder)
    saved = int(checkpoint.resolve(run, "latest").name)
    assert 0 < saved < 12_000 and f"saved at policy step {saved:,}\n" in output
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["interrupted"]
    done = here("stage", "train", folder)
    assert done.returncode == 0, done.stderr
    assert 11_000 < json.loads(done.stdout)["policy_steps"] <= 12_000  # the budget includes rows that only reset
    assert [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "resume"] == [saved]


MISTAKES: list[tuple[list[str], str]] = [
    (["exp=ppo", "env.id=CartPol-v1"], "CartPole-v1"),
    (["exp=ppo", "algo.gama=0.9"], "algo.gamma"),
    (["exp=ppo", "algo.gamma=1.5"], "<= 1"),
    (["exp=ppo", "algo.optimizer.lr=fast"], "number"),
    (["exp=pppo"], "ppo"),
    (["exp=ppo", "fabric.devices=0"], "fabric.devices=0"),
    (["exp=ppo", "algo.cnn_keys.encoder=[rgb,depth]"], "cnn_keys"),
    (["exp=ppo", "algo.mlp_keys.encoder=[state,stat]"], "state"),
    (["exp=ppo", "distribution.type=normal"], "discrete"),
    (["exp=ppo", "env.id=Pendulum-v1", "distribution.type=discrete"], "normal"),
    (["exp=ppo", "init_from=nowhere"], "nowhere"),
    (["exp=ppo", "checkpoint.resume_from=nowhere"], "nowhere"),
    (["exp=ppo", "fabric.precision=16-mixed"], "cuda"),
    (["exp=ppo", "env.wrapper.gravty=3"], "gravty"),
]


@pytest.mark.parametrize(("overrides", "expected"), MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_train_refuses_mistake_with_one_sentence(
    tmp_path: Path, here: Command, monkeypatch: pytest.MonkeyPatch, overrides: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = here("train", *overrides)
    assert_one_sentence(done, expected)
    assert list(tmp_path.iterdir()) == []


def test_train_process_refuses_mistake_with_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    done = shepherd(place, "train", "exp=ppo", "env.id=CartPol-v1", home=tmp_path / "home")
    assert_one_sentence(done, "CartPole-v1")
    assert list(place.iterdir()) == []


def test_train_refuses_unreachable_prefect_server(
    tmp_path: Path, here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # as set in a terminal after `make down`
    done = here("train", "exp=ppo", "run_dir=run")
    assert_one_sentence(done, "PREFECT_API_URL=http://127.0.0.1:9/api: no Prefect server answers there")
    assert list(tmp_path.iterdir()) == []


def test_resume_of_finished_run_needs_no_server(
    trained: Trained, here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    done = here("resume", str(trained.run.path))
    assert done.returncode == 0, done.stderr
    assert "already finished" in done.stdout


def test_config_agents_envs_and_help_print_output(here: Command) -> None:
    commands = {
        "config": ("config", "exp=ppo", "env.id=Acrobot-v1"),
        "agents": ("agents",),
        "envs": ("envs",),
        "help": ("train", "-h"),
    }
    outputs = {name: here(*words) for name, words in commands.items()}
    assert {done.returncode for done in outputs.values()} == {0}
    assert "id: Acrobot-v1" in outputs["config"].stdout
    assert "ppo" in outputs["agents"].stdout
    assert "classic control" in outputs["envs"].stdout
    for key in ("algo.clip_coef", "env.num_envs", "evaluation.episodes", *presets()):
        assert key in outputs["help"].stdout, key


def test_evaluate_and_enjoy_record_frozen_lake(home: Path, here: Command) -> None:
    for name, *rest in (("make-env", *TINY, "env.id=FrozenLake-v1"), ("checkpoint",)):
        assert here("stage", name, "runs/lake", *rest).returncode == 0
    done = here("evaluate", "runs/lake", "--episodes", "1", "--video")
    assert "video" in done.stdout, done.stderr
    assert here("enjoy", "runs/lake").returncode == 0
    for film in (home / "runs/lake/media").glob("*.mp4"):
        assert film.stat().st_size > 1000
    assert len(list((home / "runs/lake/media").glob("*.mp4"))) == 2


def test_train_failure_prints_sentence_without_traceback(home: Path) -> None:
    """Uses a new process, because this process has already imported Prefect, which installs its own log handler."""
    words = ("train", *TINY, "algo.optimizer.lr=1e30", "run_dir=runs/broken")
    done = shepherd(home, *words, **processes.NO_STORE)
    assert done.returncode == 1 and "not finite" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
