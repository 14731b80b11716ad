"""Checks of Dreamer V2: our losses and gradients against SheepRL.

A check takes the module under test as an argument, like those of `oracle`.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rlcore.optim import rules
from rlcore.optim.optimizer_keys import OptimizerConfig
from tests.golden.dreamer_oracle import (
    Case,
    Names,
    batch_of,
    make_learner,
    near,
    noise_of,
    type_keys,
)
from tests.golden.oracle import HERE, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v2_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]


def learner_of(module: ModuleType, variant: str, *more: str) -> Any:
    """Return a learner of a variant; `more` are further keys."""
    typed = [*type_keys(MADE["common"] | VARIANTS[variant]), *more]
    return make_learner(module, ["exp=dreamer_v2", *typed], tuple(MADE["choices"].get(variant, ())), 64)


def case_of(module: ModuleType, variant: str, *more: str) -> tuple[Case, dict[str, np.ndarray]]:
    """Return one batch with SheepRL's samples, and the whole fixture; `more` are further keys."""
    content, nvec = part(fixture("dreamer_v2"), f"{variant}/"), tuple(MADE["choices"].get(variant, ()))
    learner = learner_of(module, variant, *more)
    world, actor = learner.agent.world, learner.agent.actor
    ours = Names(learner.config.critic.mlp_layers, learner.config.layer_norm, world.rssm.sizes[0]).of
    behavior = learner.behavior
    parts = {"world": world, "actor": actor, "critic": behavior.critic, "target": behavior.target_critic}
    for name, target in parts.items():
        target.load_state_dict(ours(name, part(content, f"weights/{name}/")))
    rows = part(content, "batch/")
    rows["actions"] = np.roll(rows["actions"], -1, 0)  # SheepRL stores them with the observation that they led to
    noise = noise_of(content, nvec, len(content["returns"]))
    gradients = {name: ours(name, part(content, f"gradients/{name}/")) for name in ("world", "actor", "critic")}
    return Case(learner, parts, batch_of(rows, nvec), noise, gradients, part(content, "metrics/")), content


def check_losses(module: ModuleType, variant: str) -> None:
    """Check every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case, content = case_of(module, variant)
    _, found = case.check_losses()
    near("λ-returns", found["returns"], content["returns"].squeeze(-1))
    near("weights", found["weight"], content["discount"].squeeze(-1)[:-1])


def check_update(module: ModuleType) -> None:
    """Check the metrics of an update; the exploration noise has decayed by 1.5 half-lives to its minimum."""
    keys = ["algo.actor.expl_amount=0.4", "algo.actor.expl_decay=100", "algo.actor.expl_min=0.2"]
    keys += [f"algo.{part}.optimizer.weight_decay=0" for part in ("world_model", "actor", "critic")]
    case, _ = case_of(module, "mixed", *keys)
    case.check_update(150, 0.2)


def check_copies(module: ModuleType) -> None:
    """Check that the target critic is copied before the first and each hundredth step (arXiv:2010.02193, B)."""
    learner = learner_of(module, "discrete")
    batch, taus = batch_of(part(fixture("dreamer_v2"), "discrete/batch/"), (4,)), list[float]()
    learner.step = lambda sequence, tau, rng: taus.append(tau) or {}
    for _ in range(201):
        learner.update(batch, np.random.default_rng(0))
    assert [i for i, tau in enumerate(taus) if tau] == [0, 100, 200] and {*taus} == {0.0, 1.0}


def check_decay(module: ModuleType) -> None:
    """Check weights after ten steps of an optimizer whose weight decay is independent of the learning rate."""
    content = part(fixture("dreamer_v2"), "decay/")
    config = module.Config(total_steps=1).update_rule(OptimizerConfig(lr=1e-2, eps=1e-5, weight_decay=1e-2))
    vector, lr = torch.from_numpy(content["before"]).double(), torch.tensor(1e-2, dtype=torch.float64)
    state = rules.slots(config, vector)
    for t, gradient in enumerate(torch.from_numpy(content["gradients"]).double(), 1):
        vector, state = rules.update(config, vector, gradient, state, torch.tensor(t, dtype=torch.float64), lr)
    near("weights", vector, content["after"])
