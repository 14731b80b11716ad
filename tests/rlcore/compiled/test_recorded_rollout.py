"""Recorded rollouts in batched environments; the CUDA graph itself is replaced by a function that reuses its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.conformance.trainings import bits
from rlcore.envs.batched.classic_control import Pendulum
from rlcore.functional.tree import name_leaves
from rlcore.store.checkpoint import nested_state
from rlcore.train import trainer as module
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.learning.assembly import assemble
from tests.rlcore.compiled.test_cuda_graph import recordings  # noqa: F401
from tests.soaking import heavy

PARTS = ("agent", "optimizer", "reward_scaler")


def training(
    algo: str,
    recorded: bool,
    monkeypatch: pytest.MonkeyPatch,
    env_id: str = "batched/Pendulum-v1",
    limit: int = 7,
    **changes: Any,
) -> Trainer:
    made = module.Compiler
    with monkeypatch.context() as patch:
        patch.setattr(module, "Compiler", lambda *a, **more: made(*a, **(more | {"records": True})))
        settings = SETTINGS[algo] | {"compile": recorded} | changes
        return assemble(env_id, settings, num_envs=3, max_episode_steps=limit)


def iterate(one: Trainer, count: int) -> Trainer:
    for _ in range(count):
        one.collect()
        one.update()
    return one


def learned(one: Trainer) -> list[Any]:
    """Return the encoded state of agent, optimizer and reward statistics."""
    return [nested_state.encode(getattr(one.learner, part).state_dict()) for part in PARTS]


@pytest.mark.parametrize("algo", ["ppo", pytest.param("ppo_recurrent", marks=heavy), pytest.param("a2c", marks=heavy)])
def test_recorded_rollouts_equal_eager_ones_and_resume(
    algo: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Any],  # noqa: F811
) -> None:
    eager, whole, first, second = (training(algo, recorded, monkeypatch) for recorded in (False, True, True, True))
    iterate(eager, 4)
    iterate(whole, 4)
    path = iterate(first, 2).save(tmp_path)
    iterate(second.load(path), 2)
    assert whole.collector._recorded is not None and recordings
    assert eager.collector._recorded is None
    assert whole.env_steps == eager.env_steps < whole.policy_steps
    assert bits(second) == bits(whole)
    assert learned(whole) == learned(eager)


@pytest.mark.parametrize(("env_id", "limit"), [("batched/Pendulum-v1", 7), ("batched/rl8-cartpole", 24)])
def test_collected_rows_and_episodes_equal_those_of_eager_rollouts(
    env_id: str,
    limit: int,
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Any],  # noqa: F811
) -> None:
    eager, recorded = (training("ppo", use, monkeypatch, env_id, limit) for use in (False, True))
    for _ in range(3):
        one, other = eager.collector.collect(24), recorded.collector.collect(24)
        for mine, theirs in zip(one, other, strict=True):
            named, others = name_leaves(mine), name_leaves(theirs)
            assert named.keys() == others.keys()
            assert [name for name in named if not torch.equal(named[name], others[name])] == []
        assert eager.envs.pop_episodes() == recorded.envs.pop_episodes() != []
    assert recorded.collector._recorded is not None and len(recordings) == 1


def test_rollout_that_reads_a_value_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Any],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded, step = training("ppo", True, monkeypatch), Pendulum.step
    monkeypatch.setattr(Pendulum, "step", lambda self, action: step(self, action + 0.0 * float(action.sum())))
    steps, _ = recorded.collector.collect(24)
    assert len(steps.reward) == 24 and recorded.collector._recorded is None and not recordings
    assert "the rollout is not compiled and runs as eager code" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: records a CUDA graph")
def test_graph_of_rollout_equals_eager_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS["ppo"] | {"normalize_obs": False, "normalize_reward": False}
    eager, recorded = (
        assemble(
            "batched/Pendulum-v1", settings | {"compile": use}, num_envs=64, max_episode_steps=7, accelerator="cuda"
        )
        for use in (False, True)
    )
    for _ in range(3):
        one, other = eager.collector.collect(24)[0], recorded.collector.collect(24)[0]
        assert torch.equal(one.reward, other.reward) and torch.equal(one.action, other.action)
    assert recorded.collector._recorded is not None
