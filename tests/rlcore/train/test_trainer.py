"""Trainer as in a notebook: stepwise, saved and loaded without a run directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml

from flows.stages.collect import collect
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RestartConfig
from rlcore.config.run import RunConfig
from rlcore.config.values import plain
from rlcore.data.dataset import load_dataset
from rlcore.errors import RunError, UserError
from rlcore.evaluation.policy import load_policy
from rlcore.nn.network_keys import KeysConfig
from rlcore.spec import ActionSpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.store.directory import RunDirectory, write_json
from rlcore.train.trainer import Trainer
from tests.probes import q_learning
from tests.rlcore.envs import probe_envs  # noqa: F401 - registers Probe/...
from tests.runs import CARD

FOUR = EnvConfig(id="CartPole-v1", num_envs=4)


def training(seed: int = 0, **settings: Any) -> Trainer:
    algo = build(a2c.Config, {"total_steps": 200, "dense_units": 8} | settings, "algo.")
    return Trainer(RunConfig(algo=algo, env=EnvConfig(id="CartPole-v1", num_envs=2), seed=seed), CARD)


def bits(one: Trainer) -> Any:
    return nested_state.encode(one.state_dict())


def test_save_replaces_checkpoint_of_same_name(tmp_path: Path) -> None:
    first, second = training(0), training(1)
    for one in (first, second):
        one.collect()
        one.update()
    assert first.env_steps == second.env_steps and bits(first) != bits(second)
    path = first.save(tmp_path)
    assert second.save(tmp_path) == path and checkpoint.damage(path) is None
    assert bits(training(2).load(path)) == bits(second)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_iteration_reports_counts_and_means() -> None:
    one = training()
    results = list(one)
    assert [iteration.policy_steps for iteration in results] == list(range(10, 201, 10))
    assert all(torch.isfinite(torch.tensor(list(iteration.metrics.values()))).all() for iteration in results)
    ended = [iteration for iteration in results if iteration.episodes]
    (episode, *_), means = ended[0].episodes, ended[0].metrics
    assert means["Game/ep_len_avg"] == pytest.approx(episode.length, abs=30) and means["Rewards/rew_avg"] > 0
    assert (
        results[-1].env_steps < results[-1].policy_steps
    )  # rows that only reset an environment are no environment steps


@pytest.mark.parametrize(
    ("key", "asked", "expected"), [(True, None, True), ("auto", None, False), (True, False, False)]
)
def test_compiled_argument_overrides_config(key: Any, asked: Any, expected: bool) -> None:
    algo = build(a2c.Config, {"total_steps": 200, "dense_units": 8, "compile": key}, "algo.")
    config = RunConfig(algo=algo, env=EnvConfig(id="CartPole-v1", num_envs=2))
    assert (Trainer(config, CARD, compiled=asked).context.compiler is not None) is expected


def test_evaluate_is_repeatable_and_changes_no_bits() -> None:
    first, second = training(), training()
    for one in (first, second):
        one.collect()
        one.update()
    results = [first.evaluate(3, greedy=False) for _ in range(2)]
    assert results[0] == results[1] and results[0]["episodes"] == 3
    for one in (first, second):
        one.collect()
        one.update()
    assert bits(first) == bits(second)


def test_save_refuses_rows_without_update(tmp_path: Path) -> None:
    one = training()
    one.collect()
    with pytest.raises(Exception, match=r"update\(\) before saving"):
        one.save(tmp_path)


def train_once(**settings: Any) -> Trainer:
    one = training(**settings)
    one.collect()
    one.update()
    return one


@pytest.mark.parametrize("name", ["policy.json", "manifest.json"])
def test_save_refuses_folder_of_another_policy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(
        UserError, match=f"contains {name}, so another policy would be loaded from it; use a new folder"
    ):
        train_once().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_load_policy_accepts_checkpoint_of_trainer(tmp_path: Path) -> None:
    one = train_once()
    older = one.save(tmp_path)
    one.collect()
    one.update()
    path = one.save(tmp_path)
    agent, obs = one.learner.agent, np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    with torch.no_grad():
        action = agent.act((), {"state": torch.from_numpy(obs)}, torch.ones(50).bool(), None, True)[1]
    for place in (tmp_path, path):
        policy = load_policy(place)
        assert policy.predict(obs).tolist() == agent.to_env(action).tolist()
        assert policy.description["policy_steps"] == one.policy_steps
    weights = [load_policy(place).agent.state_dict()["critic.layers.0.weight"] for place in (older, path)]
    assert not torch.equal(*weights)


def test_load_refuses_other_training_and_changes_nothing(tmp_path: Path) -> None:
    path = train_once().save(tmp_path / "small")
    wide = training(actor={"dense_units": 16})
    before = bits(wide)
    with pytest.raises(UserError) as refused:
        wide.load(path)
    assert "\n" not in str(refused.value) and bits(wide) == before
    assert str(refused.value).startswith(f"checkpoint {path}: ")
    assert "the agent's actor.layers.0.bias is of shape [64] in the state, but of shape [16] in this training" in str(
        refused.value
    )
    more = Trainer(dataclasses.replace(wide.config, algo=training().config.algo, env=FOUR), CARD)
    with pytest.raises(RunError, match="^the environments were saved with num_envs=2, but num_envs is 4 now; use "):
        more.load(path)
    for place in ("nope", tmp_path):
        with pytest.raises(
            UserError, match=rf"^{place}: this is no valid checkpoint and contains none; .* Trainer.save"
        ) as refused:
            wide.load(place)
        assert "--" not in str(refused.value)
    with pytest.raises(UserError, match=rf"^{tmp_path}: contains no policy; .* Trainer.save"):
        load_policy(tmp_path)
    (path / "learning/tensors.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="tensors.safetensors .* choose another checkpoint$"):
        wide.load(path)


def test_trainer_refuses_foreign_vector_environment() -> None:
    config = training().config
    for envs in (gymnasium.make_vec("CartPole-v1", 2), gymnasium.make("CartPole-v1")):
        with pytest.raises(UserError, match=r"^envs is a .* not a subclass of .*VectorEnv; .*\(env\.id"):
            Trainer(config, CARD, envs=envs)
        envs.close()


@pytest.mark.parametrize("change", [{"id": "Toy"}, {"action": ActionSpec("Discrete", (), "int64", (5,), (0,))}])
def test_evaluate_refuses_other_environment(change: dict[str, Any]) -> None:
    one = training()
    toy = dataclasses.replace(one.envs.spec, **change)
    card = CARD | {"spec": one.envs.spec.to_json()}
    assert Trainer(one.config, card, envs=one.envs).evaluate(1)["episodes"] == 1
    one.envs.spec = toy
    with pytest.raises(UserError, match=rf"^evaluate\(\) uses env.id=CartPole-v1 of the config, .* uses {toy.id}"):
        Trainer(one.config, card, envs=one.envs).evaluate(1)


def test_trainer_refuses_missing_observation_key() -> None:
    earlier = training()
    algo = dataclasses.replace(earlier.config.algo, mlp_keys=KeysConfig(encoder=["stat"]))
    with pytest.raises(
        UserError, match=r"^algo\.mlp_keys\.encoder: CartPole-v1 has no key 'stat'; did you mean 'state'"
    ):
        Trainer(dataclasses.replace(earlier.config, algo=algo), envs=earlier.envs)


def test_remember_fills_replay_buffer_with_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    algo = build(q_learning.Config, {"total_steps": 400, "size": 100, "learning_starts": 8}, "algo.")
    config = RunConfig(algo=algo, env=EnvConfig(id="CartPole-v1", num_envs=2), seed=0)
    run = RunDirectory(tmp_path)
    run.make("", {}, yaml.safe_dump(plain(config)))
    write_json(run.card, CARD | {"spec": Trainer(config, CARD).envs.spec.to_json()})
    collect(run)
    one = Trainer(config, CARD)
    one.remember(run.dataset)
    rows = load_dataset(run.dataset)["obs", "state"].reshape(-1, 4)
    for _ in range(6):
        one.collect()
        steps = one.update().get("Params/gradient_steps", 0)
        assert steps == (8 if one.policy_steps > 8 else 0)  # two per batch; the rows of the dataset cause none
    held = {tuple(row) for row in one.copy_rows()["obs", "state"].reshape(-1, 4).tolist()}
    assert len(held & {tuple(row) for row in rows.tolist()}) > 100
    with pytest.raises(
        UserError, match=r"^remember\(dataset\): training has already begun; call it before the first iteration"
    ):
        one.remember(run.dataset)
    with pytest.raises(UserError, match=r"^remember\(dataset\): a2c has no replay buffer"):
        training().remember(run.dataset)


def test_weights_are_copied_to_player_only_after_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    algo = build(q_learning.Config, {"total_steps": 400, "size": 100, "learning_starts": 8}, "algo.")
    one, copied = Trainer(RunConfig(algo=algo, env=EnvConfig(id="CartPole-v1", num_envs=2)), CARD), list[int]()
    monkeypatch.setattr(one.learner, "sync_weights", lambda player: copied.append(one.policy_steps))
    for _ in range(6):
        one.collect()
        one.update()
    assert copied == [16, 24, 32, 40, 48]  # no batch is due after the first rollout, of 8 policy steps


def test_load_state_dict_refuses_other_number_of_ranks() -> None:
    one = training()
    one.collect()
    one.update()
    state = one.state_dict()
    state["ranks"]["1"] = state["ranks"]["0"]
    with pytest.raises(ValueError, match="the state has 2 ranks, but this training has 1"):
        training().load_state_dict(state)


def test_metrics_count_restarted_environments() -> None:
    counts = []
    for wrapper in ({"lengths": [4], "fault": "raise", "at": 2}, {"lengths": [4]}):
        restart = RestartConfig(attempts=99, wait=0.0)
        env = EnvConfig(id="Probe/Counter-v0", num_envs=2, wrapper=wrapper, restart_on_exception=restart)
        algo = build(a2c.Config, {"total_steps": 200, "dense_units": 8, "rollout_steps": 6}, "algo.")
        one = Trainer(RunConfig(algo=algo, env=env, seed=0), CARD)
        for _ in range(2):
            one.collect()
            one.update()
            counts.append(one.metrics().get("Game/env_restarts"))
        one.close()
    # Of each environment every third step fails: its second action, then a row that opens the next episode.
    assert counts == [4.0, 8.0, None, None]
