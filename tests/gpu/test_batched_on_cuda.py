"""Rollouts and updates in batched environments on a GPU, eager and recorded. Skipped without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.conformance.trainings import bits
from rlcore.train.trainer import Trainer
from tests.contract.test_registry import SETTINGS
from tests.learning.assembly import assemble

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")
every_algorithm = pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("ppo", {"per_rank_batch_size": 256}),
        ("ppo", {"per_rank_batch_size": 256, "target_kl": 0.005, "accumulate_minibatches": 2}),
        ("ppo_recurrent", {}),
        ("ppo_recurrent", {"target_kl": 0.005}),
        ("a2c", {}),
    ],
)


def training(algo: str, recorded: bool, **changes: Any) -> Trainer:
    settings = SETTINGS[algo] | {"compile": recorded} | changes
    return assemble("batched/Pendulum-v1", settings, num_envs=64, max_episode_steps=7, accelerator="cuda")


def iterate(one: Trainer, count: int) -> Trainer:
    for _ in range(count):
        one.collect()
        one.update()
    return one


@contextmanager
def no_synchronization() -> Iterator[None]:
    """Context manager in which torch raises an error if an operation waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_algorithm
def test_recorded_update_is_one_graph_and_resumes_to_same_bits(
    algo: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole, first, second = (training(algo, True, **changes) for _ in range(3))
    iterate(whole, 4)
    iterate(second.load(iterate(first, 2).save(tmp_path)), 2)
    assert bits(second) == bits(whole)
    graph = whole.learner.step.execution.code if algo == "a2c" else whole.learner.all_steps.recorded
    assert graph is not None and graph.built and whole.collector._recorded is not None


@every_algorithm
def test_recorded_training_matches_eager_training(algo: str, changes: dict[str, Any]) -> None:
    eager, recorded = (training(algo, use, **changes) for use in (False, True))
    torch.set_float32_matmul_precision("highest")  # each training sets it from its config
    for _ in range(2):
        eager.collect()
        recorded.collect()
        expected, found = eager.update(), recorded.update()
        for name in expected.keys() - {"Time/update_s", "Memory/peak_gb"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-3), name


@every_algorithm
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
def test_rollout_and_update_never_wait_for_the_gpu(algo: str, changes: dict[str, Any], recorded: bool) -> None:
    one = iterate(training(algo, recorded, **changes), 2)
    with no_synchronization():
        for _ in range(2):
            one.collect_rollout()
            one.take_gradient_steps()
    with no_synchronization(), pytest.raises(RuntimeError):
        float(one.learner.optimizer.lr)
