"""Dreamer V2's checks: our losses and gradients against SheepRL's numbers.

A check takes the module under test as an argument, as those of `oracle` do.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rlcore.functional.noise import Drawn
from rlcore.nn.rssm import State
from rlcore.optim import rules
from rlcore.optim.optimizer_keys import OptimizerConfig
from tests.golden.dreamer_oracle import (
    Names,
    batch_of,
    compare_gradients,
    given_step,
    make_learner,
    near,
    noise_of_actions,
    type_keys,
)
from tests.golden.oracle import HERE, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v2_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]


def learner_of(module: ModuleType, variant: str) -> Any:
    """A learner of a variant."""
    typed = type_keys(MADE["common"] | VARIANTS[variant])
    return make_learner(module, ["exp=dreamer_v2", *typed], tuple(MADE["choices"].get(variant, ())), 64)


def check_losses(module: ModuleType, variant: str) -> None:
    """Every loss, λ-return, weight, and gradient of one batch, with the samples that SheepRL drew."""
    content, nvec = part(fixture("dreamer_v2"), f"{variant}/"), tuple(MADE["choices"].get(variant, ()))
    learner = learner_of(module, variant)
    world, actor = learner.agent.world, learner.agent.actor
    ours = Names(learner.config.critic.mlp_layers, learner.config.layer_norm, world.rssm.sizes[0]).of
    parts = {"world": world, "actor": actor, "critic": learner.critic, "target": learner.target_critic.module}
    for name, target in parts.items():
        target.load_state_dict(ours(name, part(content, f"weights/{name}/")))
    batch = part(content, "batch/")
    batch["actions"] = np.roll(batch["actions"], -1, 0)  # theirs lie with what they led to
    sequence = given_step(learner, batch_of(batch, nvec))[0]
    model = learner.model_loss(sequence, Drawn(iter([torch.from_numpy(content["noise/observed"])])))
    horizon, count = content["returns"].shape[:2]
    imagined = torch.from_numpy(content["noise/imagined"]).view(horizon, count, -1)
    act = noise_of_actions(content, nvec, horizon, count)
    policy = learner.actor_objective(State(**model[3]), sequence.terminated, Drawn(iter([act, imagined])))
    value = learner.critic_objective(policy[3])
    for name, found in (("world", model), ("actor", policy), ("critic", value)):
        compare_gradients(name, parts[name], found, ours(name, part(content, f"gradients/{name}/")))
    logged = model[2] | policy[2] | value[2]
    for name, expected in part(content, "metrics/").items():
        near(name, logged[name], expected)
    near("λ-returns", policy[3]["target"], content["returns"].squeeze(-1))
    near("weights", policy[3]["weight"], content["discount"].squeeze(-1)[:-1])


def check_copies(module: ModuleType) -> None:
    """The slow critic is copied before the first gradient step and each hundredth behind it (arXiv:2010.02193, B)."""
    learner = learner_of(module, "discrete")
    batch, taus = batch_of(part(fixture("dreamer_v2"), "discrete/batch/"), (4,)), list[float]()
    learner.step = lambda sequence, tau, rng: taus.append(tau) or {}
    for _ in range(201):
        learner.update(batch, np.random.default_rng(0))
    assert [i for i, tau in enumerate(taus) if tau] == [0, 100, 200] and {*taus} == {0.0, 1.0}


def check_decay(module: ModuleType) -> None:
    """Weights after ten steps of an optimizer whose weights decay whatever the learning rate is."""
    content = part(fixture("dreamer_v2"), "decay/")
    config = module.Learner.rule(OptimizerConfig(lr=1e-2, eps=1e-5, weight_decay=1e-2))
    vector, lr = torch.from_numpy(content["before"]).double(), torch.tensor(1e-2, dtype=torch.float64)
    state = rules.slots(config, vector)
    for t, gradient in enumerate(torch.from_numpy(content["gradients"]).double(), 1):
        vector, state = rules.update(config, vector, gradient, state, torch.tensor(t, dtype=torch.float64), lr)
    near("weights", vector, content["after"])
