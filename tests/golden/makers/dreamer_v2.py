"""Write the golden values of Dreamer V2: losses of SheepRL for given weights, one batch and its samples.

dreamer_v2.npz              for every variant: weights, batch, the noise equivalent to its samples, and all losses,
                            λ-returns and gradients, before clipping, in float64; written as float32
dreamer_v2_fixtures.json    overrides of each variant, under SheepRL's and our names; resolved presets
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.dreamer_v2 import agent as theirs
from sheeprl.algos.dreamer_v2.dreamer_v2 import actor_loss, critic_loss, imagine, world_model_loss
from sheeprl.algos.dreamer_v2.utils import build_optimizer
from sheeprl.utils.distribution import TruncatedStandardNormal
from torch import Tensor
from torch.distributions import Distribution, OneHotCategoricalStraightThrough, TransformedDistribution

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

COMMON = {
    "algo.horizon": HORIZON,
    "algo.dense_units": 6,
    "algo.mlp_layers": 1,
    "algo.world_model.discrete_size": 4,
    "algo.world_model.stochastic_size": 3,
    "algo.world_model.kl_free_nats": 0.01,
    "algo.world_model.use_continues": True,
    "algo.world_model.encoder.cnn_channels_multiplier": 1,
    "algo.world_model.recurrent_model.recurrent_state_size": 7,
    "algo.world_model.transition_model.hidden_size": 5,
    "algo.world_model.representation_model.hidden_size": 5,
    "algo.actor.ent_coef": 0.03,
    "algo.mlp_keys.encoder": ["state"],
    "algo.cnn_keys.encoder": [],
}
PICTURES = {"algo.cnn_keys.encoder": ["rgb"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {"algo.mlp_layers": 2, "algo.world_model.use_continues": False},
    "multi_discrete": PICTURES
    | {"algo.world_model.discount_scale_factor": 2.0, "algo.world_model.kl_regularizer": 0.3},
    "mixed": {
        "algo.actor.objective_mix": 0.4,
        "algo.layer_norm": True,
        "algo.world_model.kl_free_avg": False,
        "algo.world_model.kl_free_nats": 1.3,
    },
    "continuous": PICTURES | {"algo.layer_norm": True, "algo.world_model.kl_balancing_alpha": 0.6},
    "clamped": {"algo.actor.objective_mix": 0.7, "algo.world_model.kl_free_nats": 50.0, "algo.actor.min_std": 0.3},
    "tanh_normal": {"distribution.type": "tanh_normal", "algo.actor.ent_coef": 0.0, "algo.actor.init_std": 0.5},
}
CHOICES = {"discrete": (4,), "multi_discrete": (3, 2), "mixed": (3, 2)}


def draw_truncated(samples: Samples) -> Any:
    """Sample truncated normals and record the uniform noise."""

    def rsample(self: Any, *_: Any) -> Tensor:
        noise = torch.rand_like(self.loc)
        samples.drawn.append(("normal", noise))
        return self.icdf(noise)

    return rsample


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec, keys = CHOICES.get(name, ()), COMMON | changes
    cfg = compose("dreamer_v2", keys | {"algo.cnn_keys.decoder": keys["algo.cnn_keys.encoder"]})
    data = batch(nvec, pictures)
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    world, actor, critic, target = modules = build(theirs, cfg, nvec, fabric, 64)
    samples, model = Samples(), cfg.algo.world_model
    draws = (
        mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self)),
        mock.patch.object(TruncatedStandardNormal, "rsample", draw_truncated(samples)),
        mock.patch.object(TransformedDistribution, "rsample", draw_squashed(samples)),
    )
    with draws[0], draws[1], draws[2]:
        loss, posteriors, recurrent, found = world_model_loss(
            world,
            data,
            cnn_keys=tuple(cfg.algo.cnn_keys.encoder),
            mlp_keys=tuple(cfg.algo.mlp_keys.encoder),
            stochastic_size=model.stochastic_size,
            discrete_size=model.discrete_size,
            recurrent_state_size=model.recurrent_model.recurrent_state_size,
            use_continues=model.use_continues,
            gamma=cfg.algo.gamma,
            kl_balancing_alpha=model.kl_balancing_alpha,
            kl_free_nats=model.kl_free_nats,
            kl_free_avg=model.kl_free_avg,
            kl_regularizer=model.kl_regularizer,
            discount_scale_factor=model.discount_scale_factor,
        )
        observed = samples.of("latent")[1::2]  # a prior is sampled before each posterior
        samples.drawn.clear()
        how = {"horizon": HORIZON, "gamma": cfg.algo.gamma, "lmbda": cfg.algo.lmbda}
        result = imagine(
            world,
            actor,
            target,
            posteriors.detach(),
            recurrent.detach(),
            data["terminated"],
            use_continues=model.use_continues,
            **how,
        )
    trajectories, actions, values, returns, discount = result
    policy_loss = actor_loss(
        actor,
        trajectories,
        actions,
        values,
        returns,
        discount,
        objective_mix=cfg.algo.actor.objective_mix,
        actions_dim=nvec or (2,),
        ent_coef=cfg.algo.actor.ent_coef,
    )
    value_loss = critic_loss(critic, trajectories, returns, discount)
    if not cfg.algo.cnn_keys.encoder:
        del data["rgb"]
    others = named_metrics(found, loss, policy_loss, value_loss) | noise_of(observed, samples, nvec)
    others |= {"returns": returns, "discount": discount}
    return results(name, nvec, data, modules, (loss, policy_loss, value_loss), others)


def decayed() -> dict[str, np.ndarray]:
    """Return weights after ten steps of SheepRL's optimizer with its special weight decay."""
    settings = {"_target_": "torch.optim.Adam", "lr": 1e-2, "eps": 1e-5, "betas": [0.9, 0.999], "weight_decay": 1e-2}
    rng = torch.Generator().manual_seed(7)
    weights, gradients = torch.randn(6, generator=rng), torch.randn(10, 6, generator=rng)
    p = torch.nn.Parameter(weights.clone())
    optimizer = build_optimizer(settings, [p])
    for p.grad in gradients:
        optimizer.step()
    found = {"before": weights, "gradients": gradients, "after": p}
    return {f"decay/{key}": value.detach().numpy() for key, value in found.items()}


def count_preset(exp: str) -> dict[str, int]:
    return count(theirs, compose(exp, {"algo.mlp_keys.encoder": [], "algo.mlp_keys.decoder": []}))


def main() -> None:
    Distribution.set_default_validate_args(False)  # like its command: γ is not a sample of a Bernoulli variable
    names = ("dreamer_v2", "dreamer_v2_ms_pacman", "dreamer_v2_benchmarks", "dreamer_v2_crafter")
    sizes, presets = {name: count_preset(name) for name in names}, {name: leaves(name) for name in names}
    write("dreamer_v2", make, COMMON, VARIANTS, decayed(), choices=CHOICES, sizes=sizes, presets=presets)


if __name__ == "__main__":
    main()
