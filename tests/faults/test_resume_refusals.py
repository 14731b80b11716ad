"""Config changes that resuming a run refuses or allows; a refusal changes no file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.main import main
from flows.runs.create import change_run, new_run
from flows.stages.make_env import make_env
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.train.fingerprint import learning_settings
from rlcore.train.resume import refuse_other_learning
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare


def trained(folder: Path, until: int = 256, **settings: Any) -> RunDirectory:
    """An unfinished run with a checkpoint every 64 policy steps."""
    run = prepare(folder, **{"total_steps": 512, "checkpoint__every": 64, "checkpoint__keep_last": None} | settings)
    session = RunTrainer(run)
    while session.policy_steps < until:
        session.advance(lambda facts: None)
        session.save()
    session.close()
    return run


def files(run: RunDirectory) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name not in ("lock", ".driver")}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (2, "Shepherd 0.1.0, which this version cannot read; train again with this version$"),
        (9, "a newer version of Shepherd .format 9, this version reads 3.; use the newer version$"),
    ],
)
def test_resume_refuses_checkpoints_of_other_versions(tmp_path: Path, number: int, reason: str) -> None:
    run = trained(tmp_path / "run")
    for path in checkpoint.newest_first(run.checkpoints):
        manifest = json.loads((path / "manifest.json").read_bytes())
        (path / "manifest.json").write_text(json.dumps(manifest | {"format": number}))
    before = files(run)
    with pytest.raises(UserError, match=f"^checkpoint .*: manifest.json was written by {reason}"):
        RunTrainer(run)
    assert files(run) == before


def test_resume_refuses_run_with_only_damaged_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    for path in checkpoint.newest_first(run.checkpoints):
        (path / "learning/state.json").write_bytes(b"{}")
    before = files(run)
    with pytest.raises(UserError, match="every checkpoint is damaged .*remove its folder `checkpoints`"):
        RunTrainer(run)
    assert files(run) == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "run_dir=elsewhere",
            "run_dir=elsewhere: cannot change for an existing run; .* move its folder .*/run",
        ),
        (
            "log_root=elsewhere",
            "log_root=elsewhere: cannot change for an existing run; .* move its folder .*/run",
        ),
        ("checkpoint.resume_from=other", "resume_from=other: this run resumes from its own checkpoints"),
        (
            "algo.total_steps=9999",
            r"started with algo.total_steps=512.*\(the effect of algo.anneal_lr depends on algo.total_steps",
        ),
    ],
)
def test_change_run_refuses_ineffective_overrides(tmp_path: Path, override: str, message: str) -> None:
    run = prepare(tmp_path / "run", algo__anneal_lr=True)
    before = files(run)
    with pytest.raises(UserError, match=message):
        change_run(run, [override])
    assert files(run) == before


def test_change_run_refuses_budget_below_trained_steps(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", until=256)
    before = files(run)
    with pytest.raises(UserError, match=rf"^algo.total_steps=192: {run.path} was trained for 256 policy steps already"):
        change_run(run, ["algo.total_steps=192"])
    assert files(run) == before
    change_run(run, ["algo.total_steps=256"])


def test_change_run_refuses_budget_with_train_every(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", "Pendulum-v1", algo="sac", algo__train_every=100)
    with pytest.raises(
        UserError, match=r"algo.total_steps=512.*\(the effect of algo.train_every depends on algo.total_steps"
    ):
        change_run(run, ["algo.total_steps=9999"])


def test_change_run_stores_overrides_and_warns_about_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = prepare(tmp_path / "run")
    run.overrides.write_text("exp=ppo\n")
    change_run(run, ["evaluation.episodes=7"])
    assert not caplog.records
    change_run(run, ["num_threads=2", "algo.total_steps=9999"])
    assert run.overrides.read_text() == "exp=ppo\nevaluation.episodes=7\nnum_threads=2\nalgo.total_steps=9999\n"
    assert [r.getMessage() for r in caplog.records] == [
        "num_threads is 2, was 1: the run continues, but not with the same bits"
    ]


@pytest.mark.parametrize("stage", ["make-env", "collect", "train", "evaluate"])
def test_stage_refuses_run_driven_by_other_process(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepare(tmp_path / "run")
    before = files(run)
    with run.driving():
        assert main(["stage", stage, str(run.path)]) == 2
    assert f"pid {os.getpid()}" in capsys.readouterr().err
    assert files(run) == before


def test_change_run_refuses_run_driven_by_other_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepare(tmp_path / "run")
    before = files(run)
    with run.driving():  # for example while the model is registered, after its trainer has ended
        with pytest.raises(UserError, match=f"pid {os.getpid()} on .* is writing this run"):
            change_run(run, ["metric.log_every=128"])
        assert main(["resume", str(run.path), "metric.log_every=128"]) == 2
    assert files(run) == before


def test_resume_allows_changed_threads_and_subprocesses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run")
    change_run(run, ["num_threads=2", "env.sync_env=false"])
    session = RunTrainer(run)
    try:
        assert session.policy_steps >= 256
        assert (session.config.num_threads, session.config.env.sync_env) == (2, False)
    finally:
        session.close()
        change_run(run, ["num_threads=1"])
        RunTrainer(run).close()  # resets this process to one thread


@pytest.mark.parametrize(("tier", "refused"), [("snapshot", False), ("boundary", True)])
def test_change_run_budget_depends_on_tier(tier: str, refused: bool, tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    run.card.write_text(json.dumps(json.loads(run.card.read_text()) | {"tier": tier}))
    before = run.config.read_text()
    if refused:
        with pytest.raises(
            UserError, match="algo.total_steps=1024: this run was started with algo.total_steps=512.*init_from"
        ):
            change_run(run, ["algo.total_steps=1024"])
        assert run.config.read_text() == before
    else:
        change_run(run, ["algo.total_steps=1024"])
        assert yaml.safe_load(run.config.read_text())["algo"]["total_steps"] == 1024


SMALL = ["exp=ppo", "env.num_envs=2", "algo.rollout_steps=32", "algo.per_rank_batch_size=16", "algo.anneal_lr=false"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("source")
    typed = [*SMALL, "algo.total_steps=512", "checkpoint.every=64", f"run_dir={folder / 'run'}"]
    run = new_run(typed)
    make_env(run)
    session = RunTrainer(run)
    while session.policy_steps < 128:
        session.advance(lambda facts: None)
        session.save()
    session.close()
    return run


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "algo.gamma=0.5",
            r"algo.gamma=0.5: {0}/checkpoints/\d+ was trained with 0.99; set it back, or .*init_from={0}",
        ),
        ("seed=7", r"seed=7: {0}/checkpoints/\d+ was trained with 42"),
        ("env.id=Acrobot-v1", r"env.id=Acrobot-v1: {0}/checkpoints/\d+ was trained with CartPole-v1"),
    ],
)
def test_resume_from_refuses_other_learning_settings(
    source: RunDirectory, tmp_path: Path, override: str, message: str
) -> None:
    newest = checkpoint.resolve(source, "latest")
    typed = [*SMALL, "algo.total_steps=512", override, f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    with pytest.raises(UserError, match=message.format(re.escape(str(source.path)))):
        new_run(typed)
    assert not (tmp_path / "b").exists()


def test_resume_ignores_vectorization_in_old_fingerprint(source: RunDirectory) -> None:
    config = config_of(source)
    now = learning_settings(config, "snapshot", "eager")
    before = json.loads(json.dumps(now))
    before["config"]["env"]["vectorization"] = "single"
    refuse_other_learning(before, now, config, source.path)
    before["config"]["env"]["clip_rewards"] = not config.env.clip_rewards
    with pytest.raises(UserError, match="env.clip_rewards="):
        refuse_other_learning(before, now, config, source.path)


def test_resume_accepts_newer_key_at_default(source: RunDirectory) -> None:
    config = config_of(source)
    now = json.loads(json.dumps(learning_settings(config, "snapshot", "eager")))
    before = json.loads(json.dumps(now))
    for key in ("warmup", "groups", "clip_norm"):
        del before["config"]["algo"]["optimizer"][key]
    refuse_other_learning(before, now, config, source.path)
    now["config"]["algo"]["optimizer"]["warmup"] = 10
    with pytest.raises(UserError, match="algo.optimizer.warmup=10: .* was trained with null"):
        refuse_other_learning(before, now, config, source.path)


def test_resume_from_allows_larger_budget(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    same = [*SMALL, "algo.total_steps=1024", "evaluation.episodes=3"]
    typed = [*same, f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    run = new_run(typed)
    make_env(run)
    session = RunTrainer(run)
    session.close()
    assert session.policy_steps == int(newest.name)


def test_new_run_records_resume_from_digest(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    run = new_run([*SMALL, f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"])
    recorded = {"path": str(newest), "digest": checkpoint.manifest(newest)["digest"]}
    assert run.read_identity()["resume_from"] == recorded


def test_resume_from_refuses_budget_below_checkpoint(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    typed = [*SMALL, "algo.total_steps=64", f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    with pytest.raises(UserError, match=rf"^algo.total_steps=64: {newest} was trained for {newest.name} policy steps"):
        new_run(typed)
    assert not (tmp_path / "b").exists()


def test_resume_from_run_names_its_newest_checkpoint(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    for place, message in (
        (source.path, f"this is a run.*shepherd resume {source.path}`; .*checkpoint.resume_from={newest}$"),
        (tmp_path / "nowhere", "this is not the folder of a checkpoint; give such a folder"),
    ):
        typed = [*SMALL, f"checkpoint.resume_from={place}", f"run_dir={tmp_path / 'b'}"]
        with pytest.raises(UserError, match=f"^checkpoint.resume_from={place}: {message}"):
            new_run(typed)
    assert not (tmp_path / "b").exists()


def test_init_from_run_records_its_checkpoint(tmp_path: Path) -> None:
    def typed(name: str, *more: str) -> list[str]:
        small = ["exp=ppo", "env.num_envs=2", "algo.rollout_steps=32", "algo.total_steps=512", "checkpoint.every=64"]
        return [*small, *more, f"run_dir={tmp_path / name}"]

    source = new_run(typed("source"))
    make_env(source)
    session = RunTrainer(source)
    session.advance(lambda facts: None)
    session.save()
    warm = typed("warm", f"init_from={source.path}")
    run = new_run(warm)
    kept = Path(yaml.safe_load(run.config.read_text())["init_from"])
    assert kept == checkpoint.resolve(source, "latest")
    while session.policy_steps == int(kept.name):  # due evaluations come first
        session.advance(lambda facts: None)
    session.save()
    session.close()
    assert kept != checkpoint.resolve(source, "latest")  # later checkpoints of the source do not matter
