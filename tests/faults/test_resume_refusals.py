"""Changes that a run may not go on with, and those that it may: nothing is touched where it may not."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.main import main
from flows.runs.change import change_run
from flows.runs.create import new_run
from flows.stages.make_env import make_env
from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.train.fingerprint import learning_settings
from rlcore.train.resume_rules import refuse_other_learning
from rlcore.train.run_trainer import RunTrainer
from tests.runs import prepare


def trained(folder: Path, until: int = 256, **settings: Any) -> RunDirectory:
    """A run with a checkpoint every 64 policy steps that stands before its end."""
    run = prepare(folder, **{"total_steps": 512, "checkpoint__every": 64, "checkpoint__keep_last": None} | settings)
    session = RunTrainer(run)
    while session.policy_steps < until:
        session.advance(lambda said: None)
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
def test_session_refuses_checkpoints_of_other_versions(tmp_path: Path, number: int, reason: str) -> None:
    run = trained(tmp_path / "run")
    for path in checkpoint.newest_first(run.checkpoints):
        manifest = json.loads((path / "manifest.json").read_bytes())
        (path / "manifest.json").write_text(json.dumps(manifest | {"format": number}))
    before = files(run)
    with pytest.raises(UserError, match=f"^checkpoint .*: manifest.json was written by {reason}"):
        RunTrainer(run)
    assert files(run) == before


def test_a_run_of_which_every_checkpoint_is_damaged_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    for path in checkpoint.newest_first(run.checkpoints):
        (path / "learning/state.json").write_bytes(b"{}")
    before = files(run)
    with pytest.raises(UserError, match="every checkpoint is damaged .*remove its folder `checkpoints`"):
        RunTrainer(run)
    assert files(run) == before


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run_dir=elsewhere", "run_dir=elsewhere: the folder of this run is .*/run; move that folder"),
        ("log_root=elsewhere", "log_root=elsewhere: the folder of this run is .*/run"),
        ("checkpoint.resume_from=other", "resume_from=other: this run resumes from its own checkpoints"),
        ("algo.total_steps=9999", r"started with algo.total_steps=512.*\(the effect of algo.anneal_lr depends on it"),
    ],
)
def test_what_a_begun_run_could_only_take_note_of_is_refused(tmp_path: Path, override: str, says: str) -> None:
    run = prepare(tmp_path / "run", algo__anneal_lr=True)
    before = files(run)
    with pytest.raises(UserError, match=says):
        change_run(run, [override])
    assert files(run) == before


def test_change_run_refuses_a_budget_below_what_is_done(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", until=256)
    before = files(run)
    with pytest.raises(UserError, match=rf"^algo.total_steps=192: {run.path} was trained for 256 policy steps already"):
        change_run(run, ["algo.total_steps=192"])
    assert files(run) == before
    change_run(run, ["algo.total_steps=256"])


def test_a_run_whose_trainings_are_rare_ends_where_it_was_to_end(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run", "Pendulum-v1", algo="sac", algo__train_every=100)
    with pytest.raises(UserError, match=r"algo.total_steps=512.*\(the effect of algo.train_every depends on it"):
        change_run(run, ["algo.total_steps=9999"])


def test_what_may_change_is_kept_with_what_was_typed_and_other_bits_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
def test_a_stage_of_a_run_that_another_process_leads_is_refused(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepare(tmp_path / "run")
    before = files(run)
    with run.driving():
        assert main(["stage", stage, str(run.path)]) == 2
    assert f"pid {os.getpid()}" in capsys.readouterr().err
    assert files(run) == before


def test_a_run_that_another_process_leads_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepare(tmp_path / "run")
    before = files(run)
    with run.driving():  # its trainer has ended, say: it registers
        with pytest.raises(UserError, match=f"pid {os.getpid()} on .* is writing this run"):
            change_run(run, ["metric.log_every=128"])
        assert main(["resume", str(run.path), "metric.log_every=128"]) == 2
    assert files(run) == before


def test_threads_and_subprocesses_may_change_on_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run")
    change_run(run, ["num_threads=2", "env.sync_env=false"])
    session = RunTrainer(run)
    try:
        assert session.policy_steps >= 256
        assert (session.config.num_threads, session.config.env.sync_env) == (2, False)
    finally:
        session.close()
        change_run(run, ["num_threads=1"])
        RunTrainer(run).close()  # this process goes on with one thread


@pytest.mark.parametrize(("tier", "refused"), [("snapshot", False), ("boundary", True)])
def test_a_run_may_be_made_longer_unless_its_last_checkpoint_cut_episodes(
    tier: str, refused: bool, tmp_path: Path
) -> None:
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
        session.advance(lambda said: None)
        session.save()
    session.close()
    return run


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "algo.gamma=0.5",
            r"algo.gamma=0.5: {0}/checkpoints/\d+ was trained with 0.99; set it back, or .*init_from={0}",
        ),
        ("seed=7", r"seed=7: {0}/checkpoints/\d+ was trained with 42"),
        ("env.id=Acrobot-v1", r"env.id=Acrobot-v1: {0}/checkpoints/\d+ was trained with CartPole-v1"),
    ],
)
def test_going_on_from_a_checkpoint_of_other_settings_is_refused_before_anything_is_made(
    source: RunDirectory, tmp_path: Path, override: str, says: str
) -> None:
    newest = checkpoint.resolve(source, "latest")
    typed = [*SMALL, "algo.total_steps=512", override, f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    with pytest.raises(UserError, match=says.format(re.escape(str(source.path)))):
        new_run(typed)
    assert not (tmp_path / "b").exists()


def test_a_fingerprint_that_counted_the_vector_among_what_is_learned_is_no_hindrance(source: RunDirectory) -> None:
    config = config_of(source)
    now = learning_settings(config, "snapshot", "eager")
    before = json.loads(json.dumps(now))
    before["config"]["env"]["vectorization"] = "single"
    refuse_other_learning(before, now, config, source.path)
    before["config"]["env"]["clip_rewards"] = not config.env.clip_rewards
    with pytest.raises(UserError, match="env.clip_rewards="):
        refuse_other_learning(before, now, config, source.path)


def test_a_key_younger_than_the_checkpoint_is_no_hindrance_at_its_default(source: RunDirectory) -> None:
    config = config_of(source)
    now = json.loads(json.dumps(learning_settings(config, "snapshot", "eager")))
    before = json.loads(json.dumps(now))
    for key in ("warmup", "groups", "clip_norm"):
        del before["config"]["algo"]["optimizer"][key]
    refuse_other_learning(before, now, config, source.path)
    now["config"]["algo"]["optimizer"]["warmup"] = 10
    with pytest.raises(UserError, match="algo.optimizer.warmup=10: .* was trained with null"):
        refuse_other_learning(before, now, config, source.path)


def test_going_on_from_a_checkpoint_of_the_same_settings_may_train_longer(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    same = [*SMALL, "algo.total_steps=1024", "evaluation.episodes=3"]
    typed = [*same, f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    run = new_run(typed)
    make_env(run)
    session = RunTrainer(run)
    session.close()
    assert session.policy_steps == int(newest.name)


def test_going_on_from_a_checkpoint_refuses_a_budget_below_it(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    typed = [*SMALL, "algo.total_steps=64", f"checkpoint.resume_from={newest}", f"run_dir={tmp_path / 'b'}"]
    with pytest.raises(UserError, match=rf"^algo.total_steps=64: {newest} was trained for {newest.name} policy steps"):
        new_run(typed)
    assert not (tmp_path / "b").exists()


def test_going_on_from_a_run_says_which_of_its_checkpoints_to_type(source: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(source, "latest")
    for place, says in (
        (source.path, f"this is a run.*shepherd resume {source.path}`; .*checkpoint.resume_from={newest}$"),
        (tmp_path / "nowhere", "no checkpoint there; give its folder"),
    ):
        typed = [*SMALL, f"checkpoint.resume_from={place}", f"run_dir={tmp_path / 'b'}"]
        with pytest.raises(UserError, match=f"^checkpoint.resume_from={place}: {says}"):
            new_run(typed)
    assert not (tmp_path / "b").exists()


def test_init_from_a_run_names_one_checkpoint_of_it(tmp_path: Path) -> None:
    def typed(name: str, *more: str) -> list[str]:
        small = ["exp=ppo", "env.num_envs=2", "algo.rollout_steps=32", "algo.total_steps=512", "checkpoint.every=64"]
        return [*small, *more, f"run_dir={tmp_path / name}"]

    source = new_run(typed("source"))
    make_env(source)
    session = RunTrainer(source)
    session.advance(lambda said: None)
    session.save()
    warm = typed("warm", f"init_from={source.path}")
    run = new_run(warm)
    kept = Path(yaml.safe_load(run.config.read_text())["init_from"])
    assert kept == checkpoint.resolve(source, "latest")
    while session.policy_steps == int(kept.name):  # what is owed comes first
        session.advance(lambda said: None)
    session.save()
    session.close()
    assert kept != checkpoint.resolve(source, "latest")  # it has come further, and the new run does not care
