"""Updates of PPO with mixed precision match a loop of torch's autocast, GradScaler and Adam."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.optim.flat import SCALE
from rlcore.spec import ArraySpec, EnvSpec
from tests.golden.on_policy import ACTIONS, KnownOrder, injected
from tests.learning.assembly import context

SAMPLES, SIZE, EPOCHS, LR, CLIP = 256, 32, 3, 3e-3, 0.5


def make_learner(precision: Any, **settings: Any) -> Any:
    values = {"name": "ppo", "total_steps": 1000, "per_rank_batch_size": SIZE, "update_epochs": EPOCHS} | settings
    values |= {"max_grad_norm": CLIP, "ent_coef": 0.01, "dense_units": 16, "normalize_advantages": False}
    values |= {"optimizer": {"name": "adam", "lr": LR, "eps": 1e-5}}
    spec = EnvSpec("Mixed-v0", {"state": ArraySpec((4,), "float32")}, ACTIONS["discrete"])
    fabric = Fabric(accelerator="cpu", devices=1, plugins=precision)
    return ppo.build(replace(context(values, spec, 1), fabric=fabric))[0]


def make_samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    columns = {"features": rng.normal(size=(SAMPLES, 4)), "action": rng.integers(0, 5, (SAMPLES, 1))}
    columns |= {name: rng.normal(size=SAMPLES) for name in ("advantage", "returns", "old_value")}
    columns["old_logprob"] = -np.log(5) + rng.normal(0, 0.1, SAMPLES)
    return {name: v if name == "action" else v.astype(np.float32) for name, v in columns.items()}


def train(learner: Any, agent: torch.nn.Module, samples: Any, orders: np.ndarray, dtype: torch.dtype) -> int:
    """Train a copy of the agent as a PyTorch user would; return the number of steps before the KL stop."""
    config, optimizer = learner.config, torch.optim.Adam(agent.parameters(), lr=LR, eps=1e-5)
    group, steps = config.accumulate_minibatches or SAMPLES // SIZE, 0
    # Our scale multiplies the sum of the losses of a step, and this one their mean.
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE * SIZE * group, enabled=dtype == torch.float16)
    for order in torch.from_numpy(orders):
        for rows in order.split(SIZE * group):
            optimizer.zero_grad()
            kl = 0.0
            for part in rows.split(SIZE):
                minibatch = samples.at(part, samples.advantage[part], samples.weight[part])
                with torch.autocast("cpu", dtype):
                    policy, value = agent(minibatch.obs)
                    coefs = {"clip_coef": 0.2, "ent_coef": 0.01}
                    loss, _, means = ppo.objective(policy, value, minibatch, coefs, config)
                scaler.scale(loss / len(rows)).backward()
                kl += float(means["Info/approx_kl"]) / group
            if config.target_kl is not None and kl > 1.5 * config.target_kl:
                return steps
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(agent.parameters(), CLIP)
            scaler.step(optimizer)
            scaler.update()
            steps += 1
    return steps


@pytest.mark.parametrize("settings", [{}, {"target_kl": 0.02}, {"accumulate_minibatches": 2, "target_kl": 0.012}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ppo_mixed_precision_matches_torch(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    half = dtype == torch.float16
    precision = MixedPrecision(
        "16-mixed" if half else "bf16-mixed", "cpu", torch.amp.GradScaler("cpu") if half else None
    )
    learner = make_learner(precision, **settings)
    agent, before = copy.deepcopy(learner.agent), copy.deepcopy(learner.agent.state_dict())
    batch = injected(ppo.PPOSamples, learner, make_samples())
    samples = learner.samples(batch)._replace(weight=torch.ones(SAMPLES))
    learner.samples = lambda batch: samples
    orders = np.stack([np.random.default_rng(epoch).permutation(SAMPLES) for epoch in range(EPOCHS)])
    learner.update(batch, KnownOrder(orders))
    steps = train(learner, agent, samples, orders, dtype)
    assert learner.updates == steps
    every = EPOCHS * SAMPLES // SIZE // settings.get("accumulate_minibatches", 1)
    assert 1 < steps < every if "target_kl" in settings else steps == every
    states = [module.state_dict() for module in (learner.agent, agent)]
    gap, moved = (max((states[0][k] - v).abs().max().item() for k, v in other.items()) for other in (states[1], before))
    assert gap < 1e-3 * moved  # measured 6e-4 with float16, where a last bit of a weight can round another way
