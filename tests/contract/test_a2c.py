"""Properties of A2C's update that golden values do not cover."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import torch

from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.algorithms.on_policy.a2c.config import Config
from rlcore.types import Batch
from tests.contract.test_registry import SETTINGS, every_env, small
from tests.learning.assembly import context


@every_env
def test_a2c_update_is_one_gradient_step(env_id: str) -> None:
    training = small("a2c", env_id, rollout_steps=5, per_rank_batch_size=4).run(150)
    assert training.learner.updates == training.iterations == 10
    assert len(training.metrics) == 10


def test_a2c_sum_gradient_is_mean_times_samples() -> None:
    plain = {"optimizer": {"name": "sgd", "lr": 1e-3, "eps": None, "betas": None}, "max_grad_norm": 0.0}
    training = small("a2c", "CartPole-v1", **plain)
    batch = Batch(*training.collector.collect(24), 0)
    moves = []
    for reduction in ("sum", "mean"):
        given = context(SETTINGS["a2c"] | plain | {"loss_reduction": reduction}, training.envs.spec, 3)
        learner, _, _ = a2c.build(given)
        before = {name: p.detach().clone() for name, p in learner.agent.named_parameters()}
        learner.update(batch, np.random.default_rng(0))
        moves.append({name: p.detach() - before[name] for name, p in learner.agent.named_parameters()})
    samples = int((~(batch.steps.terminated | batch.steps.truncated)).sum())
    assert samples < 72
    for name, move in moves[0].items():
        torch.testing.assert_close(move, samples * moves[1][name], rtol=1e-2, atol=1e-5, msg=name)


def test_a2c_skips_update_without_valid_rows() -> None:
    training = small("a2c", "CartPole-v1", rollout_steps=1)
    steps, last = training.collector.collect(1)
    steps.truncated = torch.ones_like(steps.truncated)
    before = training.weights()
    metrics = training.learner.update(Batch(steps, last, 0), training.rng)
    assert all((before[name] == value).all() for name, value in training.weights().items())
    assert (training.learner.updates, "Info/grad_norm" in metrics) == (0, False)


def test_a2c_docs_explain_every_metric_and_key() -> None:
    pages = [(Path(__file__).parents[2] / f"docs/algorithms/{name}.md").read_text() for name in ("a2c", "ppo")]
    named = set(re.findall(r"`([^`\s=]+)`", "".join(pages)))
    (metrics,) = small("a2c", "CartPole-v1").run(1).metrics
    groups = {"name", "mlp_keys", "cnn_keys", "encoder", "actor", "critic", "optimizer"}
    assert set(metrics) | {field.name for field in dataclasses.fields(Config)} - groups <= named
