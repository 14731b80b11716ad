"""A second behavior on any Dreamer, written outside of rlcore (tests/probes/plan2explore.py)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.sequences import Segment, segment_of
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.data.replay import stored_rows
from rlcore.functional.noise import Noise
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.probes.plan2explore import plan_to_explore
from tests.runs import prepare
from tests.soaking import heavy

CHECKS = [check for check in conformance.CHECKS if check is not conformance.machine_code_equals_eager]  # minutes each
V3 = "rlcore.algorithms.dreamer.dreamer_v3.learner"
VERSIONS = ("dreamer_v1", "dreamer_v2", "dreamer_v3", "dreamer_v3_5")


@pytest.fixture(params=VERSIONS)
def config(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    label = f"p2e_{request.param}"
    base = import_module(f"rlcore.algorithms.dreamer.{request.param}.learner")
    monkeypatch.setitem(ALGORITHMS, label, plan_to_explore(base, label))
    settings = build(ALGORITHMS[label].Config, SETTINGS[request.param] | {"name": label}, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def train(config: RunConfig, updates: int = 2) -> Trainer:
    trainer = Trainer(config, compiled=False)
    while trainer.learner.updates < updates:
        trainer.collect()
        trainer.update()
    return trainer


def test_plan2explore_trains_both_behaviors(config: RunConfig) -> None:
    learner: Any = train(config).learner
    for behavior, part in zip(learner.behaviors, ("", "_exploration"), strict=True):
        assert behavior.actor_optimizer.count == 2
        assert {f"critic{part}", f"actor_optimizer{part}"} <= learner.components().keys()
    task, exploring = (behavior.actor for behavior in learner.behaviors)
    assert learner.behavior_policy.actor is exploring and learner.agent.actor is task
    assert "actor_exploration" in learner.components()
    scales = {"moments", "moments_exploration"} & learner.components().keys()
    networks = {name for name in learner.components() if name.startswith(("actor_e", "critic", "target_critic"))}
    networks -= {"critic_optimizer", "critic_optimizer_exploration"}
    assert {*learner.transferable_components} == {"agent", "actor_exploration"} | networks | scales


def test_plan2explore_reward_is_ensemble_variance(config: RunConfig) -> None:
    learner: Any = Trainer(config, compiled=False).learner
    rng, width = torch.Generator().manual_seed(0), learner.agent.world.feat_size
    feat, action = torch.randn(4, 5, width, generator=rng), torch.randint(2, (3, 5, 1), generator=rng)
    one_hot = np.eye(2, dtype=np.float32)[action[..., 0].numpy()]
    imagined = Imagined(feat, action, torch.from_numpy(one_hot))
    inputs = torch.from_numpy(np.concatenate([imagined.feat[:-1].numpy(), one_hot], -1))
    with torch.no_grad():
        predictions = np.stack([model(inputs).numpy() for model in learner.ensemble.models])
        reward = learner.behaviors[1].reward(imagined)
    np.testing.assert_allclose(reward.numpy(), predictions.var(0, ddof=1).mean(-1), rtol=1e-5)


def test_detached_heads_do_not_train_states(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the losses of the detached heads, the gradient of the rest of the world model is the same."""
    trainer, segments = Trainer(config, compiled=False), list[Segment]()
    learner: Any = trainer.learner
    actor, initial = learner.agent.actor, learner.initial_state
    learner.update = lambda batch, rng: segments.append(segment_of(batch.steps, actor, initial(batch))) or {}
    while not segments:
        trainer.collect()
        trainer.update()
    segment = segments[0]
    world = learner.agent.world
    rest = [p for name, p in world.named_parameters() if not name.startswith(("reward", "continue"))]

    def gradient() -> list[torch.Tensor]:
        rng = Noise(0, "loss")
        if config.algo.name == "p2e_dreamer_v3_5":
            total = learner.model_terms(segment, rng)[1].sum()
        else:
            total = learner.model_loss(segment, rng)[0]
        return list(torch.autograd.grad(total, rest, materialize_grads=True))

    with_heads = gradient()
    for loss in ("reward_loss", "continue_loss"):
        monkeypatch.setattr(world, loss, lambda feat, target: torch.zeros_like(target))
    for name, other in zip(with_heads, gradient(), strict=True):
        torch.testing.assert_close(name, other, rtol=0, atol=1e-6)
    monkeypatch.undo()
    monkeypatch.setattr(type(learner), "detached_heads", frozenset())
    assert any(not torch.allclose(one, other, atol=1e-6) for one, other in zip(with_heads, gradient(), strict=True))


def test_dreamer_v3_starts_from_exploration_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run starts with the world model, task behavior and rows of the exploration run, and resumes exactly."""

    def make_run(name: str, algo: str, **more: Any) -> RunDirectory:
        small = {
            f"algo__{key}": value for key, value in SETTINGS["dreamer_v3"].items() if key not in ("name", "total_steps")
        }
        return prepare(tmp_path / name, "CartPole-v1", 80, algo=algo, **small, **more)

    def train(run: RunDirectory, *stops: int) -> str:
        for until in stops:
            trainer = RunTrainer(run)
            trainer.training.advance(until, lambda metrics: False)
            trainer.save()
            trainer.close()
        return checkpoint.manifest(run.checkpoints / str(stops[-1]))["digest"]

    monkeypatch.setitem(ALGORITHMS, "p2e_v3", plan_to_explore(import_module(V3), "p2e_v3"))
    exploring = make_run("exploring", "p2e_v3")
    train(exploring, 60, 80)
    path = exploring.checkpoints / "60"
    source = {"init_from": str(path), "buffer__load_from": str(path)}
    one, two = (make_run(name, "dreamer_v3", **source) for name in ("one", "two"))
    trainer, saved = RunTrainer(one), checkpoint.load(path)[0]
    for name in ("agent", "critic", "target_critic"):
        for key, value in trainer.learner.state_dict()[name].items():
            assert torch.equal(value, saved["learner"][name][key]), (name, key)
    explored, rows = stored_rows(saved["ranks"]["0"]["buffer"]), trainer.training.buffer.copy_rows()
    assert len(rows.reward) == 60 / 2 + 1 and trainer.learner.updates == 0
    assert torch.equal(rows.obs["state"], explored.obs["state"]) and torch.equal(rows.action, explored.action)
    assert torch.equal(rows.reward, explored.reward) and torch.equal(rows.terminated, explored.terminated)
    trainer.close()
    assert train(one, 80) == train(two, 40, 80)
    assert checkpoint.load(one.checkpoints / "80")[0]["learner"]["updates"] > 0


@heavy
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_plan2explore_passes_conformance(check: Callable[[RunConfig], None], config: RunConfig) -> None:
    check(config)
