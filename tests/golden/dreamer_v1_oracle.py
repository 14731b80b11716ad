"""Dreamer V1's checks: our losses and gradients against SheepRL's numbers.

A check takes the module under test as an argument, as those of `oracle` do.
"""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.functional.noise import Drawn
from rlcore.nn.rssm import State
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

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v1_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
GRU = {"ih": "rssm.core.cell.of_input", "hh": "rssm.core.cell.of_state"}  # torch's names of weights -> ours


def ours(names: Names, part_of: str, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Weights, or gradients, of one part under our names; V1's cell, and the layer before it, are torch's."""
    cell, others = dict[str, Tensor](), dict[str, np.ndarray]()
    for name, value in given.items():
        if found := re.search(r"recurrent_model\..*rnn\.(weight|bias)_(ih|hh)_l0", name):
            cell[f"{GRU[found[2]]}.{found[1]}"] = torch.from_numpy(value).double()
        else:
            others[re.sub(r"recurrent_model\.(.*)mlp\.0", r"recurrent_model.\1mlp._model.0", name)] = value
    return cell | names.of(part_of, others)


def check_losses(module: ModuleType, variant: str) -> None:
    """Every loss, λ-return, weight, and gradient of one batch, with the samples that SheepRL drew."""
    content, nvec = part(fixture("dreamer_v1"), f"{variant}/"), tuple(MADE["choices"].get(variant, ()))
    typed = ["exp=dreamer_v1", *type_keys(MADE["common"] | VARIANTS[variant])]
    learner = make_learner(module, typed, nvec, 64)
    world, actor = learner.agent.world, learner.agent.actor
    names = Names(learner.config.critic.mlp_layers, False, world.rssm.sizes[0])
    parts = {"world": world, "actor": actor, "critic": learner.critic}
    for name, target in parts.items():
        target.load_state_dict(ours(names, name, part(content, f"weights/{name}/")))
    rows = part(content, "batch/")
    rows["actions"] = np.roll(rows["actions"], -1, 0)  # theirs lie beside the observation that they led to
    sequence = given_step(learner, batch_of(rows, nvec))[0]
    model = learner.model_loss(sequence, Drawn(iter([torch.from_numpy(content["noise/observed"])])))
    horizon, count = len(content["returns"]) + 1, content["returns"].shape[1]
    imagined = torch.from_numpy(content["noise/imagined"]).view(horizon, count, -1)
    act = noise_of_actions(content, nvec, horizon, count)
    policy = learner.actor_objective(State(**model[3]), sequence.terminated, Drawn(iter([act, imagined])))
    value = learner.critic_objective(policy[3])
    for name, found in (("world", model), ("actor", policy), ("critic", value)):
        compare_gradients(name, parts[name], found, ours(names, name, part(content, f"gradients/{name}/")))
    logged = model[2] | policy[2] | value[2]
    for name, expected in part(content, "metrics/").items():
        near(name, logged[name], expected)
    near("λ-returns", policy[3]["returns"], content["returns"].squeeze(-1))
    near("weights", policy[3]["weight"], content["discount"].squeeze(-1))
