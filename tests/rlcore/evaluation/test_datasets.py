"""Replay buffers of other runs as datasets: rows that leave a buffer enter another one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.config.compose import compose, dump
from flows.runs.create import new_run
from flows.runs.params import follow_params
from flows.stages.make_env import make_env
from flows.sweeps.jobs import differing_config
from rlcore.config.groups import EnvConfig
from rlcore.data.staging import FLAGS
from rlcore.errors import UserError
from rlcore.evaluation import datasets
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.trainer import Trainer
from tests.runs import SMALL_DREAMER, prepare

PENDULUM = {"algo": "sac", "algo__hidden_size": 8, "algo__learning_starts": 16, "algo__per_rank_batch_size": 4}
PENDULUM |= {"algo__actor__hidden_size": 8, "algo__critic__hidden_size": 8}
DREAMER = {"algo": "dreamer_v3", "algo__learning_starts": 16, "algo__per_rank_sequence_length": 8}
DREAMER |= {f"algo__{key}": value for key, value in SMALL_DREAMER.items()}
TYPED = ["exp=sac", "env.num_envs=2", "algo.hidden_size=8", "algo.total_steps=64", "algo.learning_starts=16"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a run of SAC with checkpoints at 16, 24 and 32 policy steps, whose best one is that at 24."""
    run = prepare(tmp_path_factory.mktemp("source") / "run", "Pendulum-v1", 64, **PENDULUM, env__reward_scale=0.5)
    trainer = RunTrainer(run)
    for until in (16, 24, 32):
        trainer.training.advance(until, lambda metrics: False)
        trainer.save()
    trainer.close()
    checkpoint.name_best(run, run.checkpoints / "24")
    return run


def train(run: RunDirectory, interrupted: bool) -> Any:
    """Train a run to its end, in one process or in two; return the state of its last checkpoint as JSON values."""
    for until in (32, 64) if interrupted else (64,):
        trainer = RunTrainer(run)
        trainer.training.advance(until, lambda metrics: False)
        trainer.save()
        trainer.close()
    return checkpoint.manifest(run.checkpoints / "64")["digest"]


def test_read_rows_of_checkpoint_equals_copy_rows(source: RunDirectory) -> None:
    config = config_of(source)
    trainer: Any = Trainer(config, source.read_card()).load(source.checkpoints / "24")
    copied = trainer.copy_rows()
    read = datasets.read_rows(str(source.checkpoints / "24"), trainer.envs.spec, config.env)
    assert copied.batch_size == read.batch_size == (13, 2)  # 24 policy steps, and the current time step
    for key in (("obs", "state"), "action", *FLAGS):
        assert torch.equal(copied[key], read[key]), key
    # The environment of Pendulum returns -16.3 to 0; the buffer contains half of it.
    assert torch.equal(read["reward"], trainer.buffer.copy_rows().reward * 2) and read["reward"].min() < -3


def test_copy_rows_fits_remember_of_other_algorithm(source: RunDirectory, tmp_path: Path) -> None:
    first: Any = Trainer(config_of(source), source.read_card()).load(source.checkpoints / "32")
    rows = first.copy_rows()
    other = prepare(tmp_path / "run", "Pendulum-v1", 64, **DREAMER, env__reward_scale=0.25)
    second: Any = Trainer(config_of(other), source.read_card())
    second.remember(rows)
    kept = second.copy_rows()
    for key in (("obs", "state"), "action", *FLAGS):
        torch.testing.assert_close(kept[key][1:], rows[key][1:])
    # SAC stores values before the tanh, Dreamer V3 values from -1 to 1; the torque is from -2 to 2.
    ours, theirs = second.buffer.copy_rows(), first.buffer.copy_rows()
    torch.testing.assert_close(ours.action, theirs.action.tanh())
    torch.testing.assert_close(ours.reward, theirs.reward / 2)


def test_read_rows_joins_replay_buffers_of_ranks(source: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(source.path, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    learning, bookkeeping = checkpoint.load(run.checkpoints / "16")
    learning["ranks"]["1"] = checkpoint.load(run.checkpoints / "24")[0]["ranks"]["0"]
    learning["ranks"]["1"]["buffer"]["tail"][:] = learning["ranks"]["0"]["buffer"]["tail"]
    path = checkpoint.save(run.checkpoints, 48, learning, bookkeeping)
    spec = RunTrainer(source).envs.spec
    one, two = (datasets.read_rows(str(each), spec, config_of(run).env) for each in (run.checkpoints / "16", path))
    assert one.batch_size == (9, 2) and two.batch_size == (9, 4)
    assert torch.equal(two["obs", "state"], torch.cat([one["obs", "state"]] * 2, 1))


@pytest.mark.parametrize("weights", [False, True])
def test_resumed_run_with_load_from_is_bit_identical(source: RunDirectory, tmp_path: Path, weights: bool) -> None:
    path = str(source.checkpoints / "24")
    given: dict[str, Any] = {"buffer__load_from": path} | ({"init_from": path} if weights else {})
    one, two, without = (
        prepare(tmp_path / name, "Pendulum-v1", 64, **PENDULUM, **more)
        for name, more in (("one", given), ("two", given), ("without", {}))
    )
    trainer = RunTrainer(one)
    rows = datasets.read_rows(path, trainer.envs.spec, trainer.config.env)
    assert torch.equal(trainer.training.copy_rows()["obs", "state"], rows["obs", "state"])
    name = "head.linear.weight"
    theirs = checkpoint.load(Path(path))[0]["learner"]["agent"][name]
    assert torch.equal(trainer.learner.agent.state_dict()[name], theirs) == weights
    trainer.close()
    assert train(one, interrupted=False) == train(two, interrupted=True) != train(without, interrupted=False)


def test_new_run_stores_checkpoints_of_run_and_digests(source: RunDirectory, tmp_path: Path) -> None:
    def create(name: str, *more: str) -> RunDirectory:
        return new_run([*TYPED, "env.id=Pendulum-v1", *more, f"run_dir={tmp_path / name}"])

    best, newest = (source.checkpoints / steps for steps in ("24", "32"))
    run = create("a", f"init_from={source.path}", f"buffer.load_from={source.path}")
    assert run.read_identity()["init_from"] == {
        "given": str(source.path),
        "uri": None,
        "path": str(best),
        "digest": checkpoint.manifest(best)["digest"],
    }
    loaded = {"given": str(source.path), "path": str(newest), "digest": checkpoint.manifest(newest)["digest"]}
    assert run.read_identity()["load_from"] == loaded
    config = config_of(run)
    assert (config.init_from, config.buffer.load_from) == (str(best), str(newest))
    run = create("b", f"init_from={source.checkpoints}", f"buffer.load_from={source.checkpoints}")
    assert config_of(run).init_from == config_of(run).buffer.load_from == str(newest)
    run = create("c", f"init_from={source.checkpoints}/16", f"buffer.load_from={source.checkpoints}/16")
    assert config_of(run).init_from == config_of(run).buffer.load_from == f"{source.checkpoints}/16"
    make_env(run)
    trainer = RunTrainer(run)
    assert trainer.training.copy_rows().batch_size == (9, 2)  # 16 rows of 2 environments, and the current time step
    trainer.close()


def test_load_from_run_is_recognized_by_params_and_sweeps(source: RunDirectory, tmp_path: Path) -> None:
    """config.yaml has the checkpoint in place of the run that was given."""
    params = tmp_path / "params.yaml"
    config, values = compose([*TYPED, "env.id=Pendulum-v1", f"buffer.load_from={source.path}"])
    params.write_text(dump(values))
    run = follow_params(str(tmp_path / "run"), str(params), [], "make-env")
    assert config_of(run).buffer.load_from == str(source.checkpoints / "32")
    follow_params(str(run.path), str(params), [], "evaluate")
    assert config_of(run).buffer.load_from == str(source.checkpoints / "32")
    assert differing_config(run, config) is None
    other = dataclasses.replace(config, buffer=dataclasses.replace(config.buffer, load_from="x"))
    assert differing_config(run, other) == ("buffer.load_from", str(source.path), "x")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ["buffer.load_from={0}/nothing"],
            r"buffer\.load_from={0}/nothing: cannot read a dataset .*a run or checkpoint",
        ),
        (["init_from={0}/nothing"], r"init_from={0}/nothing: contains no policy"),
        (
            ["buffer.load_from={0}/checkpoints/16", "env.id=MountainCarContinuous-v0"],
            r"buffer\.load_from={0}/checkpoints/16: its observation 'state' is \[3\] of float32, but .* \[2\] of",
        ),
        (
            ["init_from={0}/checkpoints/16", "env.id=MountainCarContinuous-v0"],
            r"init_from={0}/checkpoints/16: its .* is of shape .*, but in this run it is .*; use the algo and env keys",
        ),
        (
            ["buffer.load_from={0}", "env.normalize_actions=true"],
            r"buffer\.load_from={0}: {0}/checkpoints/32: its actions are Box \[1\] from -2 to 2, but .* from -1 to 1",
        ),
        (
            ["buffer.load_from={1}"],
            r"buffer\.load_from={1}: {1}/checkpoints/\d+: .* ppo has no replay buffer with rows",
        ),
        (["buffer.load_from={2}/checkpoints/16"], r"buffer.*/16: the checkpoint is damaged \(.*; choose another one"),
    ],
    ids=["path", "weights path", "observation", "weights", "action", "on-policy", "damaged"],
)
def test_new_run_refuses_other_source(source: RunDirectory, tmp_path: Path, typed: list[str], message: str) -> None:
    ppo, damaged = tmp_path / "ppo", tmp_path / "damaged"
    trainer = RunTrainer(prepare(ppo))
    trainer.save()
    trainer.close()
    shutil.copytree(source.path, damaged)
    for chunk in (damaged / "checkpoints" / "chunks").iterdir():
        chunk.write_bytes(chunk.read_bytes()[:-1])
    places, env = (source.path, ppo, damaged), [each for each in typed if each.startswith("env.id=")]
    with pytest.raises(UserError, match="^" + message.format(*places)):
        typed = [each.format(*places) for each in (*typed, *(() if env else ("env.id=Pendulum-v1",)))]
        new_run([*TYPED, *typed, f"run_dir={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


def test_refuse_unfit_verifies_checkpoint_once(
    source: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep checks many points, all with the same `buffer.load_from`."""
    shutil.copytree(source.path, tmp_path / "run")
    verified: list[Path] = []
    damage = checkpoint.damage
    monkeypatch.setattr(checkpoint, "damage", lambda path: (verified.append(path), damage(path))[1])
    config = compose([*TYPED, "env.id=Pendulum-v1"])[0]
    path = tmp_path / "run" / "checkpoints" / "16"
    for _ in range(3):
        datasets.refuse_unfit(str(path), datasets.read_spec(str(path)), config.env)
    assert verified == [path]


def test_refuse_unfit_of_clipped_rewards(source: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(source.path, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    run.config.write_text(run.config.read_text().replace("clip_rewards: false", "clip_rewards: true"))
    path, spec = str(run.checkpoints / "16"), RunTrainer(source).envs.spec
    datasets.refuse_unfit(path, spec, EnvConfig(id="x", reward_scale=0.5, clip_rewards=True))
    for other in (EnvConfig(id="x", reward_scale=0.5), EnvConfig(id="x", clip_rewards=True)):
        with pytest.raises(
            UserError, match=r"/16: its rewards are clipped .*clip_rewards=true and env.reward_scale=0.5"
        ):
            datasets.refuse_unfit(path, spec, other)


def test_copy_rows_requires_replay_buffer(tmp_path: Path) -> None:
    run = prepare(tmp_path / "run")
    with pytest.raises(UserError, match=r"^copy_rows\(\): ppo has no replay buffer; choose an off-policy algorithm"):
        Trainer(config_of(run), json.loads(run.card.read_text())).copy_rows()
