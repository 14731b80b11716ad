"""Checks of Dreamer V3: our losses and gradients against SheepRL.

A check takes the module under test as an argument, like those of `oracle`.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.golden.dreamer_oracle import (
    Case,
    Names,
    batch_of,
    make_learner,
    make_parts,
    near,
    noise_of,
    type_keys,
)
from tests.golden.oracle import HERE, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v3_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]


def case_of(module: ModuleType, variant: str, *more: str) -> tuple[Case, dict[str, np.ndarray]]:
    """Return one batch with SheepRL's samples, and the whole fixture; `more` are further keys."""
    content = part(fixture("dreamer_v3"), f"{variant}/")
    nvec = tuple(MADE["nvec"]) if "noise/choice0" in content else ()
    typed = [*type_keys(MADE["common"] | VARIANTS[variant]), *more]
    learner = make_learner(module, ["exp=dreamer_v3", "algo=dreamer_v3_S", *typed], nvec, 16)
    world, actor = learner.agent.world, learner.agent.actor
    width = 0 if learner.config.world_model.decoupled_rssm else world.rssm.sizes[0]
    ours = Names(learner.config.critic.mlp_layers, True, width).of
    behavior = learner.behavior
    parts = {"world": world, "actor": actor, "critic": behavior.critic, "target": behavior.target_critic}
    for name, target in parts.items():
        target.load_state_dict(ours(name, part(content, f"weights/{name}/")))
    learner.behavior.moments.low, learner.behavior.moments.high = map(torch.tensor, MADE["scales"][variant])
    noise = noise_of(content, nvec, len(content["returns"]))
    gradients = {name: ours(name, part(content, f"gradients/{name}/")) for name in ("world", "actor", "critic")}
    batch = batch_of(part(content, "batch/"), nvec)
    return Case(learner, parts, batch, noise, gradients, part(content, "metrics/")), content


def check_losses(module: ModuleType, variant: str) -> None:
    """Check every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case, content = case_of(module, variant)
    (_, tau), found = case.check_losses()
    assert tau == case.learner.config.critic.tau
    near("λ-returns", found["returns"], content["returns"].squeeze(-1))
    near("weights", found["weight"], content["discount"].squeeze(-1)[:-1])
    near("low", case.learner.behavior.moments.low, content["low"])
    near("high", case.learner.behavior.moments.high, content["high"])


def check_update(module: ModuleType) -> None:
    """Check the metrics of an update between two updates of the target critic; there is no exploration noise."""
    case, _ = case_of(module, "mixed", "algo.critic.per_rank_target_network_update_freq=2")
    case.check_update(150, None)


def check_nothing_learned(module: ModuleType) -> None:
    """Check that a new agent predicts reward and value 0, because its output weights are 0."""
    learner = make_learner(module, ["exp=dreamer_v3", *type_keys(MADE["common"])], (), 16)
    feat = torch.randn(7, sum(learner.agent.world.rssm.sizes), generator=torch.Generator().manual_seed(0)).double()
    for output in (
        learner.agent.world.predict_reward(feat),
        learner.behavior.number.mean(learner.behavior.critic(feat)),
    ):
        assert not output.any(), output


def check_owed(module: ModuleType) -> None:
    """Check that the gradient steps owed are three per ten policy steps, as soon as one is whole."""
    typed = ["exp=dreamer_v3", *type_keys(MADE["common"]), "algo.replay_ratio=0.3", "algo.learning_starts=7"]
    memory, taken = make_parts(module, typed, (), 16)[1], 0
    for steps in range(200):
        while 10 * (taken + 1) <= 3 * (steps - 7):
            taken += 1
        assert memory.count_batches(steps) == taken, (steps, memory.count_batches(steps), taken)
