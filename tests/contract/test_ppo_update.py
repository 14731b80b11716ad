"""Properties of PPO's update: which parameters each loss term reaches, and that it starts at ratio 1."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.algorithms.on_policy.ppo.learner import PPOSamples
from rlcore.functional.stats import standardize
from rlcore.types import Batch
from tests.contract.test_registry import every_env, small

PARTS = ("encoder.", "actor.", "head.", "critic.")


def at_once(samples: PPOSamples) -> PPOSamples:
    """All samples of a rollout as one minibatch, in their order."""
    return samples.at(torch.arange(len(samples.weight)), samples.advantage, samples.weight)


def reached(training: Any, **samples_changed: float) -> set[str]:
    """Parts of the agent whose parameters get a gradient from the loss of one batch."""
    learner = training.learner
    batch = Batch(*training.collector.collect(24), policy_steps=0)
    samples = learner.samples(batch)
    samples = samples._replace(**{k: torch.full_like(samples.advantage, v) for k, v in samples_changed.items()})
    if learner.config.normalize_advantages:
        samples = samples._replace(advantage=standardize(samples.advantage, samples.weight))
    loss, _, _ = learner.loss(at_once(samples), {"clip_coef": 0.2, "ent_coef": learner.config.ent_coef})
    learner.agent.zero_grad()
    loss.backward()
    named = [(n, p.grad) for n, p in learner.agent.named_parameters() if p.grad is not None and p.grad.any()]
    return {part for part in PARTS for name, _ in named if name.startswith(part)}


@every_env
def test_ppo_policy_term_reaches_encoder_actor_head_only(env_id: str) -> None:
    training = small("ppo", env_id, vf_coef=0.0, ent_coef=0.0)
    assert reached(training) == {"encoder.", "actor.", "head."}


@every_env
def test_ppo_value_term_reaches_encoder_critic_only(env_id: str) -> None:
    training = small("ppo", env_id, ent_coef=0.0, normalize_advantages=False)
    assert reached(training, advantage=0.0) == {"encoder.", "critic."}


@every_env
def test_ppo_entropy_term_reaches_encoder_actor_head_only(env_id: str) -> None:
    training = small("ppo", env_id, vf_coef=0.0, ent_coef=0.1, normalize_advantages=False)
    assert reached(training, advantage=0.0) == {"encoder.", "actor.", "head."}


@pytest.mark.parametrize(
    ("env_id", "distribution"),
    [("CartPole-v1", "discrete"), ("Pendulum-v1", "normal"), ("Pendulum-v1", "tanh_normal")],
)
def test_ppo_first_minibatch_has_ratio_one(env_id: str, distribution: str) -> None:
    training = small("ppo", env_id, distribution=distribution)
    training.run(100)  # the normaliser has its first statistics, and they changed after the last rollout
    steps, last = training.collector.collect(24)
    assert (steps.terminated | steps.truncated)[1:-1].any(), "no episode ended inside the rollout"
    learner = training.learner
    samples = at_once(learner.samples(Batch(steps, last, 100)))
    policy, value = learner.agent(samples.obs)
    ratio = (policy.logprob(samples.action) - samples.old_logprob).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-6)
    torch.testing.assert_close(value, samples.old_value, rtol=0, atol=1e-6)
    _, _, means = learner.loss(samples, {"clip_coef": 0.2, "ent_coef": 0.0})
    assert means["Info/approx_kl"].abs() < 1e-6
    assert means["Info/clip_fraction"] == 0


@every_env
def test_ppo_single_minibatch_update_has_zero_kl(env_id: str) -> None:
    training = small("ppo", env_id, update_epochs=1, per_rank_batch_size=24 * 3).run(300)
    assert len(training.metrics) >= 4
    for metrics in training.metrics:
        assert abs(metrics["Info/approx_kl"]) < 1e-6
        assert metrics["Info/clip_fraction"] == 0


def test_ppo_skips_update_without_valid_rows() -> None:
    # One environment, one row per rollout: the row after an episode's end has no action of the agent.
    training = small("ppo", "CartPole-v1", rollout_steps=1, per_rank_batch_size=1, update_epochs=1)
    training.collector.envs.reset()
    steps, last = training.collector.collect(1)
    ended = torch.ones_like(steps.truncated)
    steps.truncated = ended
    before = training.weights()
    metrics = training.learner.update(Batch(steps, last, 0), training.rng)
    assert all((before[name] == value).all() for name, value in training.weights().items())
    assert (training.learner.updates, "Info/grad_norm" in metrics) == (0, False)


def test_ppo_docs_explain_every_metric_and_key() -> None:
    page = (Path(__file__).parents[2] / "docs/algorithms/ppo.md").read_text()
    named = set(re.findall(r"`([^`\s=]+)`", page))
    (metrics,) = small("ppo", "CartPole-v1").run(1).metrics
    assert set(metrics) <= named
    groups = {"name", "mlp_keys", "cnn_keys", "encoder", "actor", "critic", "optimizer"}
    assert {field.name for field in dataclasses.fields(Config)} - groups <= named
    # The page explains no metric that does not exist.
    assert {name for name in named if name.startswith(("Loss/", "Info/"))} <= set(metrics)
