"""Trainer process: commands over pipes, kills, resumes and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.process.signals import TrainingInterrupted
from flows.runs import trainer_process
from flows.runs.listeners import subscribe
from flows.runs.milestones import note_start
from flows.runs.trainer import trainer_for
from flows.runs.trainer_process import TrainerProcess
from flows.stages.train import train
from rlcore.errors import DiskFault, RunError, UserError
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.train.run_trainer import RunTrainer
from tests.processes import NO_STORE, digest_of, environment, finish_here, shepherd
from tests.retries import wait_for
from tests.runs import prepare
from tests.soaking import heavy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm")]  # except for processes that tests start themselves
SETTINGS = {"algo__normalize_obs": True, "algo__normalize_reward": True, "algo__anneal_lr": True}


def finished(path: Path, env_id: str = "CartPole-v1", **dotted: Any) -> RunDirectory:
    run = prepare(path, env_id, **dotted)
    train(run)
    trainer_for(run).stop()
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a finished run that was trained in this process without interruption."""
    run = prepare(tmp_path_factory.mktemp("undisturbed") / "run", **SETTINGS)
    finish_here(run)
    return run


def test_trainer_forwards_work_and_raises_disk_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, run = TrainerProcess.__new__(TrainerProcess), RunDirectory(tmp_path)
    messages = [
        {"event": "work", "doing": "evaluation", "done": 3, "total": 10, "unit": "episodes"},
        {"event": "error", "sentence": "no space", "kind": "DiskFault", "exit": 1},
    ]
    lines = iter([json.dumps(line).encode() for line in messages])
    monkeypatch.setattr(trainer, "run", run, raising=False)
    monkeypatch.setattr(trainer, "_line", lambda: next(lines))
    monkeypatch.setattr(trainer, "_close", lambda: None)
    events: list[tuple[str, dict[str, Any]]] = []
    with subscribe(lambda kind, facts: events.append((kind, facts))), pytest.raises(DiskFault, match="no space"):
        trainer._until("evaluation")
    assert events == [("work", {"doing": "evaluation", "done": 3, "total": 10, "unit": "episodes"})]


def scripted(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> tuple[Any, list[dict[str, Any]], list[str]]:
    """Return a handle without a process, the events that it will receive, and its announcements."""
    trainer, lines, waits = TrainerProcess.__new__(TrainerProcess), [*events], list[str]()

    @contextmanager
    def announce(waiting_for: str) -> Iterator[None]:
        waits.append(f"{waiting_for} before {len(lines)} events")
        yield
        waits.append(f"done before {len(lines)}")

    monkeypatch.setattr(trainer_process, "announce", announce)
    monkeypatch.setattr(trainer, "_imported", False, raising=False)
    monkeypatch.setattr(trainer, "at", None, raising=False)
    monkeypatch.setattr(trainer, "_line", lambda: json.dumps(lines.pop(0)).encode())
    monkeypatch.setattr(trainer, "_send", lambda *command, **more: None)
    return trainer, lines, waits


def test_advance_announces_first_iteration_until_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = {"event": "progress", "policy_steps": 64}
    boundary: dict[str, Any] = {"event": "boundary", "policy_steps": 128, "due": [], "done": False, "reason": None}
    trainer, lines, waits = scripted(monkeypatch, {"event": "alive"}, progress, progress, boundary)
    trainer.advance(lambda facts: waits.append(f"progress {facts['policy_steps']}"))
    begin = "first iteration; before it, functions may be compiled or loaded before 4 events"
    assert waits == [begin, "done before 2", "progress 64", "progress 64"]
    lines.append(boundary)
    assert trainer.advance().policy_steps == 128 and len(waits) == 4  # later iterations are not announced


def test_call_names_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events = {"event": "alive"}, {"event": "imported"}, {"event": "called", "result": 3}
    trainer, lines, waits = scripted(monkeypatch, *events)
    assert trainer.call("a.b") == 3
    assert waits == ["importing torch and the algorithm before 3 events", "done before 1"]
    lines.append({"event": "called", "result": 4})
    assert trainer.call("a.b") == 4 and len(waits) == 2  # the second call does not wait for imports


def test_trainer_process_matches_training_in_process(undisturbed: RunDirectory, tmp_path: Path) -> None:
    assert digest_of(finished(tmp_path / "run", **SETTINGS)) == digest_of(undisturbed)


def test_resumed_trainer_runs_pending_evaluation_first(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    trainer = TrainerProcess(run)
    boundary = trainer.advance()
    while "evaluate" not in boundary.due:
        boundary = trainer.advance()
    trainer.checkpoint()
    trainer.process.kill()
    trainer.stop()
    trainer = TrainerProcess(run)
    assert trainer.advance().due == ("evaluate",)
    assert trainer.evaluate()["policy_steps"] == boundary.policy_steps
    trainer.stop()


def test_sigterm_saves_checkpoint_after_iteration(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", total_steps=500_000, algo__compile=False)  # iterations of 64 rows
    trainer = TrainerProcess(run)

    sent: list[int] = []

    def interrupt(progress: dict[str, Any]) -> None:
        if progress["policy_steps"] > 200 and not sent:  # once: a second signal ends it at once
            sent.append(progress["policy_steps"])
            trainer.process.send_signal(signal.SIGTERM)

    with pytest.raises(TrainingInterrupted):
        trainer.advance(interrupt)
    assert trainer.process.wait(10) == 130
    path = checkpoint.resolve(run, "latest")
    assert checkpoint.damage(path) is None
    assert int(path.name) > 200
    assert [e["status"] for e in read_events(run.events) if e["kind"] == "end"] == ["interrupted"]


# The run stops after evaluations, and in the middle between two of them.
@pytest.mark.parametrize(
    "rule",
    [
        {"early_stop__patience": 2},
        {"stop": [{"plateau": {"metric": "Rewards/rew_avg", "patience": 4, "rtol": 0.5}}], "total_steps": None},
    ],
    ids=["evaluations", "training"],
)
def test_stop_condition_is_unchanged_by_interruption(tmp_path: Path, rule: dict[str, Any]) -> None:
    settings = {"evaluation__every": 100, "total_steps": 2000} | rule
    whole = finished(tmp_path / "whole", **settings)
    evaluated_at = evaluations(whole)
    assert evaluated_at[-1] < 2000  # it stopped early
    run = prepare(tmp_path / "interrupted", **settings)
    trainer = TrainerProcess(run)

    def interrupt(progress: dict[str, Any]) -> None:
        if progress["policy_steps"] == evaluated_at[1]:  # after one evaluation without improvement
            trainer.process.send_signal(signal.SIGTERM)

    with pytest.raises(TrainingInterrupted):
        while True:
            boundary = trainer.advance(interrupt)
            for name, act in (("checkpoint", trainer.checkpoint), ("evaluate", trainer.evaluate)):
                if name in boundary.due:
                    act()
    last = train(run)
    trainer_for(run).stop()
    assert evaluations(run) == evaluated_at
    assert digest_of(run) == digest_of(whole)
    assert last.reason is not None and last.reason.startswith("plateau" if "stop" in rule else "stops_increasing")


@heavy
def test_stop_condition_on_training_metric_ends_all_ranks(tmp_path: Path) -> None:
    plateau = {"plateau": {"metric": "Rewards/rew_avg", "patience": 2, "rtol": 0.5}}
    run = prepare(tmp_path / "run", fabric__devices=2, total_steps=4000, stop=[plateau])
    last = train(run)
    trainer_for(run).stop()
    assert last.policy_steps < 4000
    assert last.reason is not None and last.reason.startswith("plateau: Rewards/rew_avg")


def evaluations(run: RunDirectory) -> list[int]:
    return [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "evaluation"]


def test_trainer_ends_with_parent(tmp_path: Path) -> None:
    never = 10_000_000
    run = prepare(
        tmp_path / "run", total_steps=never, evaluation__every=never, checkpoint__every=never, algo__compile=False
    )
    script = (
        "import sys; from flows.runs.trainer_process import TrainerProcess\n"
        "from rlcore.store.directory import RunDirectory\n"
        "t = TrainerProcess(RunDirectory(sys.argv[1])); print(t.process.pid, flush=True); t.advance()"
    )
    variables = environment(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", script, str(run.path)], stdout=subprocess.PIPE, env=variables)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the trainer's end", idle=5.0)


def test_stage_train_imports_only_needed_modules(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", total_steps=64, evaluation__every=64, algo__normalize_obs=True)
    note_start(run)  # as stage make-env does
    variables = environment(tmp_path, **NO_STORE, PYTHONPROFILEIMPORTTIME="1")
    done = subprocess.run(shepherd("stage", "train", str(run.path)), env=variables, capture_output=True, text=True)
    assert done.returncode == 0
    stage, trainer = (
        set(re.findall(r"^import time:.*\| +(\S+)$", log, re.MULTILINE)) for log in (done.stderr, run.log.read_text())
    )
    assert "flows.stages.evaluate" in stage  # imported by flows.stages.train, for which import_module logs no line
    assert not any(module.partition(".")[0] == "torch" for module in stage)
    assert {"torch.optim", "lightning_fabric.wrappers"} <= trainer
    assert not any(module.startswith(("torch._dynamo", "torch._inductor")) for module in trainer)


def test_trainer_refuses_second_writer(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    with run.writing(), pytest.raises(UserError, match=f"pid {os.getpid()}"):
        TrainerProcess(run)


def test_resume_refuses_changed_learning_rate(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", total_steps=64)
    finish_here(run)
    run.config.write_text(run.config.read_text().replace("lr: 0.001", "lr: 0.5"))
    with pytest.raises(UserError, match=r"algo\.optimizer\.lr=0\.5.*0\.001.*init_from"):
        TrainerProcess(run)


def test_train_skips_damaged_newest_checkpoint(undisturbed: RunDirectory, tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", **SETTINGS)
    session = RunTrainer(run)  # not closed, as if the process was killed
    for _ in range(2):
        while "checkpoint" not in session.advance(lambda progress: None).due:
            continue
        session.save()
    newest = next(checkpoint.newest_first(run.checkpoints))
    tensors = newest / "learning/tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    train(run)
    trainer_for(run).stop()
    assert digest_of(run) == digest_of(undisturbed)
    assert "tensors.safetensors has changed since it was written" in run.log.read_text()


def test_init_from_loads_weights_of_another_run(undisturbed: RunDirectory, tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", init_from=str(undisturbed.path), **SETTINGS)
    session = RunTrainer(run)
    session.save()
    session.close()
    started, _ = checkpoint.load(checkpoint.resolve(run, "latest"))
    source, _ = checkpoint.load(checkpoint.choose(undisturbed))
    name = "actor.layers.0.weight"
    assert (started["learner"]["agent"][name] == source["learner"]["agent"][name]).all()
    assert started["learner"]["updates"] == 0


def test_train_refuses_nan_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "nan_plugin.py"
    plugin.write_text(
        "import gymnasium as gym\n"
        "class Nan(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,)); action_space = gym.spaces.Discrete(2); n = 0\n"
        "    def reset(self, seed=None, options=None):\n"
        "        super().reset(seed=seed); return self.observation_space.low, {}\n"
        "    def step(self, action):\n"
        "        self.n += 1\n"
        "        reward = float('nan') if self.n == 700 else 1.0\n"
        "        return self.observation_space.low, reward, self.n % 10 == 0, False, {}\n"
        "gym.register('NanAt700-v0', Nan)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SHEPHERD_PLUGINS", "nan_plugin")
    run = prepare(
        tmp_path / "run",
        "NanAt700-v0",
        total_steps=10_000,
        checkpoint__every=500,
        evaluation__every=9_000,
        algo__compile=False,
    )
    with pytest.raises(RunError, match=r"reward.*nan|nan.*reward"):
        train(run)
    assert checkpoint.newest_good(run.checkpoints) is not None


def test_event_log_has_each_point_once_after_kill(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", metric__log_every=64)
    trainer = TrainerProcess(run)
    trainer.advance()
    trainer.process.kill()
    trainer.stop()
    with open(run.events, "a") as handle:
        handle.write('{"kind": "metrics", "env_st')  # incomplete line
    train(run)
    trainer_for(run).stop()
    points = [e["policy_steps"] for e in read_events(run.events) if e["kind"] == "metrics"]
    assert points == sorted(set(points))
    assert len(points) == 8
    assert all(json.loads(line) for line in run.events.read_text().splitlines())
