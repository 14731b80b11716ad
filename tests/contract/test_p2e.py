"""Plan2Explore: exploration, and fine-tuning from an exploration run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment, segment_of
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.evaluation.policy import load_world_model
from rlcore.functional.noise import Noise
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.runs import prepare
from tests.soaking import always, heavy

pytestmark = heavy

VERSIONS = ("1", "2", "3", "3_5")
of_each_version = pytest.mark.parametrize("version", ["1", "2", pytest.param("3", marks=always), "3_5"])


def config(algo: str, **changes: Any) -> RunConfig:
    settings = build(ALGORITHMS[algo].Config, SETTINGS[algo] | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def train(algo: str, **changes: Any) -> tuple[Trainer, dict[str, Any]]:
    """Return a trainer after two gradient steps, and the metrics of the last one."""
    trainer, metrics = Trainer(config(algo, **changes), compiled=False), dict[str, Any]()
    while trainer.learner.updates < 2:
        trainer.collect()
        metrics = trainer.update() or metrics
    return trainer, metrics


@of_each_version
def test_exploration_actor_collects_and_task_actor_is_served(version: str) -> None:
    learner: Any = train(f"p2e_dv{version}_exploration")[0].learner
    task, exploring = learner.behaviors
    player = getattr(learner.behavior_policy, "agent", learner.behavior_policy)  # V1 and V2 add noise
    assert player.actor is exploring.actor and player.world is learner.agent.world
    assert learner.agent.actor is task.actor
    assert task.actor_optimizer.count == exploring.actor_optimizer.count == learner.ensemble_optimizer.count == 2
    assert player.stored == learner.agent.stored
    weights = [member.output.weight for member in learner.ensembles.members]
    assert all(not torch.equal(one, other) for one, other in pairwise(weights))


@pytest.mark.parametrize("version", VERSIONS)
def test_ensemble_predicts_outcome_of_recorded_step(version: str) -> None:
    """Σₖ of the loss of (state t, action t) -> target t + 1; a step to the first row of an episode does not count."""
    trainer, segments = Trainer(config(f"p2e_dv{version}_exploration"), compiled=False), list[Segment]()
    learner: Any = trainer.learner
    actor, initial = learner.agent.actor, learner.initial_state
    learner.update = lambda batch, rng: segments.append(segment_of(batch.steps, actor, initial(batch))) or {}
    while not any(segment.is_first[1:].any() for segment in segments):
        trainer.collect()
        trainer.update()
    batch = segments[-1]
    aux = (learner.loss if version == "3_5" else learner.model_loss)(batch, Noise(0, "loss"))[3]
    states = ModelState(aux["deter"], aux["stoch"])
    with torch.no_grad():
        targets = learner.targets(states, batch)
        total, weight, metrics = learner.ensemble_loss(states, batch.before, batch.is_first, targets)
    world = learner.agent.world
    if version == "1":
        with torch.no_grad():
            expected_targets = world.encoder(world.encoder.preprocess(batch.obs, 2)).numpy()
    else:
        expected_targets = states.stoch.numpy()
    expected, rows, count = 0.0, *batch.reward.shape
    assert batch.is_first[1:].any()
    for t in range(rows - 1):
        for n in range(count):
            if batch.is_first[t + 1, n]:
                continue
            inputs = torch.cat([states.stoch[t, n], states.deter[t, n], batch.before[t + 1, n]])
            for member in learner.ensembles.members:
                with torch.no_grad():
                    error = member(inputs).numpy() - expected_targets[t + 1, n]
                squared = float((error.astype(np.float64) ** 2).sum())
                expected += squared if version in ("3", "3_5") else 0.5 * squared + 0.5 * len(error) * np.log(2 * np.pi)
    steps = int((~batch.is_first[1:]).sum())
    assert steps < (rows - 1) * count and weight == steps
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["Loss/ensemble_loss"]) == pytest.approx(expected / steps, rel=1e-5)


@pytest.mark.parametrize("algo", [name for name in ALGORITHMS if name.startswith("p2e")])
def test_p2e_reports_declared_metrics(algo: str) -> None:
    trainer, metrics = train(algo)
    declared = trainer.config.algo.metric_names()
    groups = ("Loss/", "State/", "Grads/", "Values_exploration/", "Rewards/intrinsic")
    assert {name for name in metrics if name.startswith(groups)} == {n for n in declared if n.startswith(groups)}


def test_task_and_exploration_keep_networks_apart() -> None:
    names = Trainer(config("p2e_dv3_exploration"), compiled=False).learner.components().keys()
    parts, keys = ("critic", "target_critic", "moments"), ("intrinsic", "extrinsic")
    each = {f"{part}_exploration_{key}" for part in parts for key in keys}
    assert each | {"agent", "critic", "target_critic", "moments", "actor_exploration", "ensembles"} <= names


def test_zero_shot_has_no_task_critic() -> None:
    critics = {"intrinsic": {"weight": 0.1}, "extrinsic": {"weight": 0.0, "reward_type": "task"}}
    learner: Any = Trainer(config("p2e_dv3_exploration", critics_exploration=critics), compiled=False).learner
    (critic,) = learner.behaviors[1].critics
    assert critic.key == "intrinsic" and critic.weight == 1.0


def make_run(folder: Path, algo: str, steps: int = 80, **more: Any) -> RunDirectory:
    small = {f"algo__{key}": value for key, value in SETTINGS[algo].items() if key not in ("name", "total_steps")}
    return prepare(folder, "CartPole-v1", steps, algo=algo, **(small | more))


def advance(run: RunDirectory, *stops: int) -> str:
    """Train a run with a new process at each of the given policy steps; return the digest of the last checkpoint."""
    for until in stops:
        trainer = RunTrainer(run)
        trainer.training.advance(until, lambda metrics: False)
        trainer.save()
        trainer.close()
    return checkpoint.manifest(run.checkpoints / str(stops[-1]))["digest"]


@of_each_version
def test_finetuning_starts_from_exploration_run(version: str, tmp_path: Path) -> None:
    """Networks and rows are those of the exploration run, and a resumed run ends in the same bits."""
    exploring = make_run(tmp_path / "exploring", f"p2e_dv{version}_exploration")
    advance(exploring, 60)
    path = exploring.checkpoints / "60"
    source = {"init_from": str(path), "buffer__load_from": str(path), "algo__learning_starts": 40}
    name = f"p2e_dv{version}_finetuning"
    one, two = (make_run(tmp_path / place, name, **source) for place in ("one", "two"))
    trainer, saved = RunTrainer(one), checkpoint.load(path)[0]
    learner: Any = trainer.learner
    for part in ("agent", "critic", "actor_exploration", *(("target_critic",) if version > "1" else ())):
        for key, value in learner.state_dict()[part].items():
            assert torch.equal(value, saved["learner"][part][key]), (part, key)
    explorer = RunTrainer(exploring)
    rows, explored = trainer.training.buffer.copy_rows(), explorer.training.buffer.copy_rows()
    explorer.close()
    assert torch.equal(rows.obs["state"], explored.obs["state"]) and torch.equal(rows.action, explored.action)
    assert rows.extras.keys() == explored.extras.keys() == ({"deter", "stoch"} if version == "3_5" else set())
    for key, value in explored.extras.items():  # states of the exploration run; the agent has not acted in the last row
        assert value.any() and torch.equal(rows.extras[key][:-1], value[:-1]), key
    player = getattr(learner.behavior_policy, "agent", learner.behavior_policy).actor
    assert same(player, learner.actor_exploration) and not same(player, learner.agent.actor)
    assert trainer.training.plan.random_steps == 0
    trainer.training.advance(80, lambda metrics: False)
    assert learner.updates > 0 and same(player, learner.agent.actor)
    trainer.close()
    assert advance(one, 80) == advance(two, 20, 60, 80)


@pytest.mark.parametrize("version", ["3", "3_5"])
def test_loaded_world_model_reports_disagreement_of_ensemble(version: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "exploring", f"p2e_dv{version}_exploration")
    advance(run, 60)
    path, rng = run.checkpoints / "60", np.random.default_rng(0)
    obs = {"state": rng.normal(size=(6, 2, 4)).astype(np.float32)}
    action = rng.integers(2, size=(6, 2))
    model = load_world_model(path)
    states = model.observe(obs, action)
    found = model.disagree(states, action)
    trainer = RunTrainer(run)
    learner: Any = trainer.learner
    inputs = torch.cat([states.feat, torch.eye(2)[torch.from_numpy(action)]], -1)
    with torch.no_grad():
        expected = np.stack([member(inputs).numpy() for member in learner.ensembles.members]).var(0, ddof=1).mean(-1)
    trainer.close()
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.isfinite(model.decode(states).value).all()  # pyright: ignore[reportCallIssue, reportArgumentType]


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_finetuning_with_task_actor_acts_with_it() -> None:
    learner: Any = Trainer(config("p2e_dv3_finetuning", player={"actor_type": "task"}), compiled=False).learner
    assert not same(learner.agent.actor, learner.actor_exploration)
    assert same(learner.behavior_policy.actor, learner.agent.actor)


@always
def test_components_of_critic_with_weight_0_are_absent() -> None:
    critics = {
        "intrinsic": {"weight": 1.0, "reward_type": "intrinsic"},
        "extrinsic": {"weight": 0.0, "reward_type": "task"},
    }
    run = config("p2e_dv3_exploration", critics_exploration=critics)
    exported = run.algo.exported_components.keys() - run.algo.absent_components
    state = Trainer(run, compiled=False).learner.components()
    assert all(run.algo.exported_components[part].partition(".")[0] in state for part in exported)
    assert "critic_exploration_extrinsic" not in exported
