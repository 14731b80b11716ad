"""Write the golden values of Plan2Explore on Dreamer V1 and V2: losses of SheepRL for weights, a batch and its samples.

p2e_dv1.npz, p2e_dv2.npz    for every variant: weights, batch, the noise equivalent to its samples, and all losses,
                            gradients and metrics of the training step of the exploration phase, in float64; written as
                            float32
p2e_dv1_fixtures.json,      overrides of each variant, under SheepRL's and our names
p2e_dv2_fixtures.json
"""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.p2e_dv1 import agent as agent_dv1
from sheeprl.algos.p2e_dv1 import p2e_dv1_exploration
from sheeprl.algos.p2e_dv2 import agent as agent_dv2
from sheeprl.algos.p2e_dv2 import p2e_dv2_exploration
from sheeprl.utils.distribution import TruncatedStandardNormal
from torch.distributions import (
    Distribution,
    Independent,
    OneHotCategoricalStraightThrough,
    TransformedDistribution,
)

from tests.golden.makers import dreamer_v1, dreamer_v2
from tests.golden.makers.p2e_steps import CONTINUED, Metrics, Recorder, as_arrays, inputs, noise
from tests.golden.makers.sheeprl_dreamers import (
    COUNT,
    HORIZON,
    LENGTH,
    Samples,
    batch,
    compose,
    disturb,
    draw_squashed,
    observations,
    pictures,
    write,
)

ENSEMBLE = {"algo.ensembles.n": 3, "algo.ensembles.dense_units": 5, "algo.ensembles.mlp_layers": 2}
COMMON = {
    "p2e_dv1": dreamer_v1.COMMON | ENSEMBLE | {"algo.intrinsic_reward_multiplier": 20.0},
    "p2e_dv2": dreamer_v2.COMMON | ENSEMBLE | {"algo.mlp_layers": 2, "algo.intrinsic_reward_multiplier": 20.0},
}
PICTURES = {"algo.cnn_keys.encoder": ["rgb"]}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "p2e_dv1": {
        "discrete": {"algo.gamma": 0.9},
        "multi_discrete": PICTURES | {"algo.world_model.use_continues": True},
        "continuous": {"algo.lmbda": 0.8},
    },
    "p2e_dv2": {
        "multi_discrete": {},
        "continuous": PICTURES | {"algo.layer_norm": True},
        "mixed": {"algo.actor.objective_mix": 0.4, "algo.world_model.use_continues": False},
    },
}
CHOICES = {"discrete": (4,), "multi_discrete": (3, 2), "mixed": (3, 2)}


def make(version: str, name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec, keys = CHOICES.get(name, ()), COMMON[version] | changes
    cfg = compose(f"{version}_exploration", keys | {"algo.cnn_keys.decoder": keys["algo.cnn_keys.encoder"]})
    cfg.algo.per_rank_batch_size, cfg.algo.per_rank_sequence_length = COUNT, LENGTH
    data = batch(nvec, pictures)
    for key, place in CONTINUED.items():
        data[key][place] = 0.0
    if not cfg.algo.cnn_keys.encoder:
        del data["rgb"]
    fabric, has_target = Fabric(accelerator="cpu", devices=1, precision="64-true"), version == "p2e_dv2"
    agent, exploration = (agent_dv2, p2e_dv2_exploration) if has_target else (agent_dv1, p2e_dv1_exploration)
    *built, _ = agent.build_agent(fabric, nvec or (2,), not nvec, cfg, observations(64))
    names = ["world", "ensembles", "actor_task", "critic_task", "target_task", "actor_exploration"]
    names += ["critic_exploration", "target_exploration"]
    modules = dict(zip([part for part in names if has_target or "target" not in part], built, strict=True))
    for module in modules.values():
        module.double()
    disturb(*modules.values())
    recorder, metrics, samples = Recorder(modules), Metrics(), Samples()
    before, optimizer = {key: value.clone() for key, value in data.items()}, recorder.optimizer
    normal = (
        mock.patch.object(TruncatedStandardNormal, "rsample", dreamer_v2.draw_truncated(samples))
        if has_target
        else mock.patch.object(Independent, "rsample", dreamer_v1.draw_independent(samples))
    )
    one_hot = mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self))
    squashed = mock.patch.object(TransformedDistribution, "rsample", draw_squashed(samples))

    def networks(kind: str) -> list[Any]:
        found = [modules[f"{part}_{kind}"] for part in ("actor", "critic", "target") if f"{part}_{kind}" in modules]
        return [*found, optimizer(f"actor_{kind}"), optimizer(f"critic_{kind}")]

    task = networks("task")
    with one_hot, normal, squashed, mock.patch.object(exploration, "update", recorder.update):
        exploration.train(
            fabric,
            modules["world"],
            *task[:-2],
            optimizer("world"),
            *task[-2:],
            data,
            metrics,
            cfg,
            modules["ensembles"],
            optimizer("ensembles"),
            *networks("exploration"),
            *((not nvec, nvec or (2,)) if has_target else ()),
        )
    drawn = samples.drawn
    observed = torch.cat([value for _, value in drawn[1 : 2 * LENGTH : 2]])  # a prior is sampled before each posterior
    content = inputs(before, modules) | noise(observed, drawn[2 * LENGTH :], nvec, HORIZON)
    return as_arrays(name, content | recorder.content | metrics.content)


def main() -> None:
    Distribution.set_default_validate_args(False)  # like its command: γ is not a sample of a Bernoulli variable
    torch.set_default_dtype(torch.float64)  # Fabric converts the outputs of its modules to this type
    for version, variants in VARIANTS.items():
        write(version, functools.partial(make, version), COMMON[version], variants, choices=CHOICES)


if __name__ == "__main__":
    main()
