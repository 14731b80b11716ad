"""Write the golden values of Dreamer V3: losses of SheepRL for given weights, one batch and its samples.

dreamer_v3.npz              for every variant: weights, batch, the noise equivalent to its samples, and all losses,
                            λ-returns and gradients, before clipping, in float64; written as float32
dreamer_v3_fixtures.json    overrides of each variant, under SheepRL's and our names
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.dreamer_v3 import agent as theirs
from sheeprl.algos.dreamer_v3.dreamer_v3 import actor_loss, critic_loss, imagine, world_model_loss
from sheeprl.algos.dreamer_v3.dreamer_v3 import world_model_loss_kwargs as kwargs_of
from sheeprl.algos.dreamer_v3.utils import Moments
from torch.distributions import Independent, OneHotCategoricalStraightThrough

from tests.golden.makers.sheeprl_dreamers import (
    COUNT,
    HORIZON,
    LENGTH,
    NVEC,
    Samples,
    batch,
    build,
    compose,
    count_size,
    draw_normals,
    leaves,
    noise_of,
    results,
    write,
)

COMMON = {
    "algo.horizon": HORIZON,
    "algo.dense_units": 6,
    "algo.mlp_layers": 1,
    "algo.world_model.discrete_size": 4,
    "algo.world_model.stochastic_size": 3,
    "algo.world_model.kl_free_nats": 0.45,
    "algo.world_model.encoder.cnn_channels_multiplier": 2,
    "algo.world_model.recurrent_model.recurrent_state_size": 7,
    "algo.world_model.transition_model.hidden_size": 5,
    "algo.world_model.representation_model.hidden_size": 5,
    "algo.world_model.reward_model.bins": 15,
    "algo.critic.bins": 15,
    "algo.actor.ent_coef": 0.03,
    "algo.mlp_keys.encoder": ["state"],
    "algo.cnn_keys.encoder": ["rgb"],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "multi_discrete": {},
    "mixed": {"algo.actor.objective_mix": 0.4, "algo.world_model.continue_scale_factor": 2.0},
    "continuous": {"algo.mlp_layers": 2},
    "continuous_mixed": {"algo.actor.objective_mix": 0.4},
    "decoupled": {
        "algo.actor.objective_mix": 1.0,
        "algo.world_model.decoupled_rssm": True,
        "algo.world_model.learnable_initial_recurrent_state": False,
        "algo.cnn_keys.encoder": [],
    },
}
SCALES = {name: (-1.25, 1.5) for name in VARIANTS} | {"decoupled": (0.1, 0.3)}  # before the step; below the floor


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec = NVEC if name in ("multi_discrete", "mixed") else ()
    keys, discrete = COMMON | changes, bool(nvec)
    cfg = compose("dreamer_v3", keys | {"algo.cnn_keys.decoder": keys["algo.cnn_keys.encoder"], "env.screen_size": 16})
    data = batch(nvec, lambda rng: torch.randint(256, (LENGTH, COUNT, 3, 16, 16), generator=rng))
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    world, actor, critic, target = modules = build(theirs, cfg, nvec, fabric, 16)
    samples = Samples()
    one_hot = mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self))
    with one_hot, mock.patch.object(Independent, "rsample", draw_normals(samples)):
        loss, posteriors, recurrent, metrics = world_model_loss(world, data, **kwargs_of(cfg))
        observed = samples.of("latent")
        samples.drawn.clear()
        clip = 0.0 if discrete else float(cfg.algo.actor.action_clip)
        how = {"horizon": HORIZON, "gamma": cfg.algo.gamma, "lmbda": cfg.algo.lmbda, "action_clip": clip}
        result = imagine(world, actor, critic, posteriors, recurrent, data["terminated"], **how)
    trajectories, actions, values, returns, discount = result
    moments = Moments(cfg.algo.actor.moments.decay, cfg.algo.actor.moments.max, 0.05, 0.95)
    moments.low, moments.high = map(torch.tensor, SCALES[name])
    offset, scale = moments(returns, fabric)
    policy_loss = actor_loss(
        actor,
        trajectories,
        actions,
        values,
        returns,
        discount,
        offset,
        scale,
        objective_mix=cfg.algo.actor.objective_mix,
        is_continuous=not discrete,
        actions_dim=nvec or (2,),
        ent_coef=cfg.algo.actor.ent_coef,
    )
    value_loss = critic_loss(critic, target, trajectories, returns, discount)
    metrics |= {"Loss/policy_loss": policy_loss, "Loss/value_loss": value_loss}
    others = {f"metrics/{key}": value for key, value in metrics.items()} | noise_of(observed, samples, nvec)
    others |= {"returns": returns, "discount": discount, "low": moments.low, "high": moments.high}
    return results(name, nvec, data, modules, (loss, policy_loss, value_loss), others)


def main() -> None:
    sizes = {size: count_size(theirs, "dreamer_v3", size) for size in ("XS", "S", "M", "L", "XL")}
    names = ("dreamer_v3", "dreamer_v3_100k_ms_pacman", "dreamer_v3_100k_boxing", "dreamer_v3_benchmarks")
    presets = {name: leaves(name) for name in names}
    write("dreamer_v3", make, COMMON, VARIANTS, nvec=NVEC, scales=SCALES, sizes=sizes, presets=presets)


if __name__ == "__main__":
    main()
