"""Plan2Explore: exploration, and fine-tuning from an exploration run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.learner import Segment, segment_of
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.config.values import plain
from rlcore.data.replay import stored_rows
from rlcore.errors import UserError
from rlcore.evaluation.policy import load_world_model
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import checkpoint
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.runs import prepare
from tests.soaking import always, heavy

pytestmark = heavy

VERSIONS = (1, 2, 3)
SPEC = EnvSpec("CartPole-v1", {"state": ArraySpec((4,), "float32")}, ActionSpec("Discrete", (), "int64", (2,), (0,)))


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


@always
@pytest.mark.parametrize("version", VERSIONS)
def test_exploration_actor_collects_and_task_actor_is_served(version: int) -> None:
    learner: Any = train(f"p2e_dv{version}_exploration")[0].learner
    task, exploring = learner.behaviors
    player = getattr(learner.behavior_policy, "agent", learner.behavior_policy)  # V1 and V2 add noise
    assert player.actor is exploring.actor and player.world is learner.agent.world
    assert learner.agent.actor is task.actor
    assert task.actor_optimizer.count == exploring.actor_optimizer.count == learner.ensemble_optimizer.count == 2
    weights = [member.output.weight for member in learner.ensembles.members]
    assert all(not torch.equal(one, other) for one, other in pairwise(weights))


@pytest.mark.parametrize("version", VERSIONS)
def test_ensemble_predicts_outcome_of_recorded_step(version: int) -> None:
    """Σₖ of the loss of (state t, action t) -> target t + 1; the step to the first row of an episode has the loss 0."""
    trainer, segments = Trainer(config(f"p2e_dv{version}_exploration"), compiled=False), list[Segment]()
    learner: Any = trainer.learner
    learner.update = lambda batch, rng: segments.append(segment_of(batch.steps, learner.agent.actor)) or {}
    while not any(segment.is_first[1:].any() for segment in segments):
        trainer.collect()
        trainer.update()
    batch = segments[-1]
    states = ModelState(**learner.model_loss(batch, Noise(0, "loss"))[3])
    with torch.no_grad():
        targets = learner.targets(states, batch)
        total = learner.ensemble_loss(states, batch.before, batch.is_first, targets)[0]
    world = learner.agent.world
    if version == 1:
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
                expected += squared if version == 3 else 0.5 * squared + 0.5 * len(error) * np.log(2 * np.pi)
    assert float(total) == pytest.approx(expected, rel=1e-5)


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


@always
@pytest.mark.parametrize("version", VERSIONS)
def test_finetuning_starts_from_exploration_run(version: int, tmp_path: Path) -> None:
    """Networks and rows are those of the exploration run, and a resumed run ends in the same bits."""
    exploring = make_run(tmp_path / "exploring", f"p2e_dv{version}_exploration")
    advance(exploring, 60)
    path = exploring.checkpoints / "60"
    source = {"init_from": str(path), "buffer__load_from": str(path), "algo__learning_starts": 40}
    name = f"p2e_dv{version}_finetuning"
    one, two = (make_run(tmp_path / place, name, **source) for place in ("one", "two"))
    trainer, saved = RunTrainer(one), checkpoint.load(path)[0]
    learner: Any = trainer.learner
    for part in ("agent", "critic", "actor_exploration", *(("target_critic",) if version > 1 else ())):
        for key, value in learner.state_dict()[part].items():
            assert torch.equal(value, saved["learner"][part][key]), (part, key)
    rows, explored = trainer.training.buffer.copy_rows(), stored_rows(saved["ranks"]["0"]["buffer"])
    assert torch.equal(rows.obs["state"], explored.obs["state"]) and torch.equal(rows.action, explored.action)
    player = getattr(learner.behavior_policy, "agent", learner.behavior_policy).actor
    assert same(player, learner.actor_exploration) and not same(player, learner.agent.actor)
    assert trainer.training.plan.random_steps == 0
    trainer.training.advance(80, lambda metrics: False)
    assert learner.updates > 0 and same(player, learner.agent.actor)
    trainer.close()
    assert advance(one, 80) == advance(two, 20, 60, 80)


def test_loaded_world_model_reports_disagreement_of_ensemble(tmp_path: Path) -> None:
    run = make_run(tmp_path / "exploring", "p2e_dv3_exploration")
    advance(run, 60)
    path, rng = run.checkpoints / "60", np.random.default_rng(0)
    obs = {"state": rng.normal(size=(6, 2, 4)).astype(np.float32)}
    action = rng.integers(2, size=(6, 2))
    found, states = load_world_model(path).disagree(obs, action), load_world_model(path).observe(obs, action)
    trainer = RunTrainer(run)
    learner: Any = trainer.learner
    inputs = torch.cat([states.feat, torch.eye(2)[torch.from_numpy(action)]], -1)
    with torch.no_grad():
        expected = np.stack([member(inputs).numpy() for member in learner.ensembles.members]).var(0, ddof=1).mean(-1)
    trainer.close()
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_finetuning_with_task_actor_acts_with_it() -> None:
    learner: Any = Trainer(config("p2e_dv3_finetuning", player={"actor_type": "task"}), compiled=False).learner
    learner.sync_weights(learner.behavior_policy)
    assert same(learner.behavior_policy.actor, learner.agent.actor)


def check_source(algo: Any, theirs: str, spec: EnvSpec = SPEC) -> str:
    source: Any = config(theirs).algo
    with pytest.raises(UserError) as error:
        algo.fine_tunes.check(algo, plain(source), SPEC, spec)
    return str(error.value)


def test_finetuning_refuses_source_with_all_differences() -> None:
    world = SETTINGS["p2e_dv3_finetuning"]["world_model"] | {"stochastic_size": 7}
    algo = config("p2e_dv3_finetuning", world_model=world, normalize_actions=False).algo
    other = EnvSpec("Other-v0", SPEC.obs, SPEC.action)
    text = check_source(algo, "p2e_dv3_exploration", other)
    for part in ("env.id=CartPole-v1 (here Other-v0)", "algo.world_model.stochastic_size", "algo.normalize_actions"):
        assert part in text
    assert "needed: p2e_dv3_exploration" in check_source(algo, "dreamer_v3")
    assert "needed: p2e_dv3_exploration" in check_source(algo, "p2e_dv2_exploration")


def test_finetuning_reports_other_values_of_exploration() -> None:
    algo = config("p2e_dv3_finetuning", gamma=0.5).algo
    (notice,) = algo.fine_tunes.list_changes(algo, plain(config("p2e_dv3_exploration").algo))
    assert "algo.gamma=0.996996996996997 (here 0.5)" in notice and "ensembles" not in notice
    same_values = config("p2e_dv3_finetuning", learning_starts=40).algo
    assert same_values.fine_tunes.list_changes(same_values, plain(config("p2e_dv3_exploration").algo)) == []


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
