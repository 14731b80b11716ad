"""Write the golden values of Dreamer V1: losses of SheepRL for given weights, one batch and its samples.

dreamer_v1.npz              for every variant: weights, batch, the noise equivalent to its samples, and all losses,
                            λ-returns and gradients, before clipping, in float64; written as float32
dreamer_v1_fixtures.json    overrides of each variant, under SheepRL's and our names; resolved presets
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.dreamer_v1 import agent as theirs
from sheeprl.algos.dreamer_v1.dreamer_v1 import actor_loss, imagine, value_loss_fn, world_model_loss
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    OneHotCategoricalStraightThrough,
    TransformedDistribution,
)

from tests.golden.makers.sheeprl_dreamers import (
    HORIZON,
    Samples,
    batch,
    build,
    compose,
    count,
    draw_squashed,
    leaves,
    named_metrics,
    noise_of,
    pictures,
    results,
    write,
)

LATENTS = 3
COMMON = {
    "algo.horizon": HORIZON,
    "algo.dense_units": 6,
    "algo.mlp_layers": 1,
    "algo.critic.mlp_layers": 2,
    "algo.world_model.discount_model.mlp_layers": 2,
    "algo.world_model.stochastic_size": LATENTS,
    "algo.world_model.kl_free_nats": 0.9,
    "algo.world_model.encoder.cnn_channels_multiplier": 1,
    "algo.world_model.recurrent_model.recurrent_state_size": 7,
    "algo.world_model.transition_model.hidden_size": 5,
    "algo.world_model.representation_model.hidden_size": 5,
    "algo.mlp_keys.encoder": ["state"],
    "algo.cnn_keys.encoder": [],
}
PICTURES, ENDS = {"algo.cnn_keys.encoder": ["rgb"]}, {"algo.world_model.use_continues": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {"algo.mlp_layers": 2, "algo.gamma": 0.9},
    "multi_discrete": PICTURES | ENDS | {"algo.world_model.kl_regularizer": 0.3},
    "continuous": PICTURES | {"algo.world_model.min_std": 0.2, "algo.lmbda": 0.8},
    "ends": ENDS | {"algo.world_model.continue_scale_factor": 4.0, "algo.actor.init_std": 2.0},
    "clamped": {"algo.world_model.kl_free_nats": 50.0, "algo.actor.min_std": 0.3},
    "normal": ENDS | {"distribution.type": "normal", "algo.actor.init_std": 0.5},
}
CHOICES = {"discrete": (4,), "multi_discrete": (3, 2)}


def draw_independent(samples: Samples) -> Any:
    """Sample independent distributions and record the noise of normals: of latents, or of actions."""
    plain = Independent.rsample

    def rsample(self: Any, *shape: Any) -> Tensor:
        if not isinstance(self.base_dist, Normal):
            return plain(self, *shape)
        result = samples.normal(self.base_dist)
        kind, noise = samples.drawn.pop()
        samples.drawn.append(("latent" if result.shape[-1] == LATENTS else kind, noise))
        return result

    return rsample


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec, keys = CHOICES.get(name, ()), COMMON | changes
    cfg = compose("dreamer_v1", keys | {"algo.cnn_keys.decoder": keys["algo.cnn_keys.encoder"]})
    data = batch(nvec, pictures)
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    world, actor, critic = modules = build(theirs, cfg, nvec, fabric, 64)
    samples, model = Samples(), cfg.algo.world_model
    draws = (
        mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self)),
        mock.patch.object(Independent, "rsample", draw_independent(samples)),
        mock.patch.object(TransformedDistribution, "rsample", draw_squashed(samples)),
    )
    with draws[0], draws[1], draws[2]:
        loss, posteriors, recurrent, found = world_model_loss(
            world,
            data,
            cnn_keys=tuple(cfg.algo.cnn_keys.encoder),
            mlp_keys=tuple(cfg.algo.mlp_keys.encoder),
            stochastic_size=model.stochastic_size,
            recurrent_state_size=model.recurrent_model.recurrent_state_size,
            use_continues=model.use_continues,
            gamma=cfg.algo.gamma,
            kl_free_nats=model.kl_free_nats,
            kl_regularizer=model.kl_regularizer,
            continue_scale_factor=model.continue_scale_factor,
        )
        observed = samples.of("latent")[1::2]  # a prior is sampled before each posterior
        samples.drawn.clear()
        rows = slice(None, -1 if model.use_continues else None)  # like its training
        how = {"horizon": HORIZON, "gamma": cfg.algo.gamma, "lmbda": cfg.algo.lmbda}
        result = imagine(
            world,
            actor,
            critic,
            posteriors[rows].detach(),
            recurrent[rows].detach(),
            use_continues=model.use_continues,
            **how,
        )
    trajectories, returns, discount = result
    policy_loss = actor_loss(discount * returns)
    value_loss = value_loss_fn(critic, trajectories, returns, discount)
    if not cfg.algo.cnn_keys.encoder:
        del data["rgb"]
    others = named_metrics(found, loss, policy_loss, value_loss) | noise_of(observed, samples, nvec)
    others |= {"returns": returns, "discount": discount}
    return results(name, nvec, data, modules, (loss, policy_loss, value_loss), others)


def count_preset(exp: str, ends: bool) -> dict[str, int]:
    keys = {"algo.mlp_keys.encoder": [], "algo.mlp_keys.decoder": [], "algo.world_model.use_continues": ends}
    return count(theirs, compose(exp, keys))


def main() -> None:
    Distribution.set_default_validate_args(False)  # like its command: γ is not a sample of a Bernoulli variable
    names = ("dreamer_v1", "dreamer_v1_benchmarks")
    sizes = {name: count_preset(name, ends=name == "dreamer_v1") for name in names}
    presets = {name: leaves(name) for name in names}
    write("dreamer_v1", make, COMMON, VARIANTS, choices=CHOICES, sizes=sizes, presets=presets)


if __name__ == "__main__":
    main()
