"""Checks of Dreamer V1: our losses and gradients against SheepRL.

A check takes the module under test as an argument, like those of `oracle`.
"""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

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

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v1_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
GRU = {"ih": "rssm.core.cell.of_input", "hh": "rssm.core.cell.of_state"}  # names of torch's weights -> ours


def ours(names: Names, part_of: str, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return weights, or gradients, of one part under our names; the cell of V1 and its input layer are torch's."""
    cell, others = dict[str, Tensor](), dict[str, np.ndarray]()
    for name, value in given.items():
        if found := re.search(r"recurrent_model\..*rnn\.(weight|bias)_(ih|hh)_l0", name):
            cell[f"{GRU[found[2]]}.{found[1]}"] = torch.from_numpy(value).double()
        else:
            others[re.sub(r"recurrent_model\.(.*)mlp\.0", r"recurrent_model.\1mlp._model.0", name)] = value
    return cell | names.of(part_of, others)


def case_of(module: ModuleType, variant: str, *more: str) -> tuple[Case, dict[str, np.ndarray]]:
    """Return one batch with SheepRL's samples, and the whole fixture; `more` are further keys."""
    content, nvec = part(fixture("dreamer_v1"), f"{variant}/"), tuple(MADE["choices"].get(variant, ()))
    typed = ["exp=dreamer_v1", *type_keys(MADE["common"] | VARIANTS[variant]), *more]
    learner = make_learner(module, typed, nvec, 64)
    world, actor = learner.agent.world, learner.agent.actor
    names = Names(learner.config.critic.mlp_layers, False, world.rssm.sizes[0])
    parts = {"world": world, "actor": actor, "critic": learner.behavior.critic}
    for name, target in parts.items():
        target.load_state_dict(ours(names, name, part(content, f"weights/{name}/")))
    rows = part(content, "batch/")
    rows["actions"] = np.roll(rows["actions"], -1, 0)  # SheepRL stores them with the observation that they led to
    noise = noise_of(content, nvec, len(content["returns"]) + 1)
    gradients = {name: ours(names, name, part(content, f"gradients/{name}/")) for name in parts}
    return Case(learner, parts, batch_of(rows, nvec), noise, gradients, part(content, "metrics/")), content


def check_losses(module: ModuleType, variant: str) -> None:
    """Check every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case, content = case_of(module, variant)
    _, found = case.check_losses()
    near("λ-returns", found["returns"], content["returns"].squeeze(-1))
    near("weights", found["weight"], content["discount"].squeeze(-1))


def check_update(module: ModuleType) -> None:
    """Check the metrics of an update; the exploration noise has decayed by one and a half half-lives."""
    keys = ["algo.actor.expl_amount=0.4", "algo.actor.expl_decay=100", "algo.actor.expl_min=0.05"]
    case, _ = case_of(module, "ends", *keys)
    case.check_update(150, 0.4 * 0.5**1.5)
