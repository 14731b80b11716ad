"""Write the golden values of Dreamer V3.5: losses of SheepRL for given weights, one batch and its samples.

dreamer_v3_5.npz            for every variant: weights, batch with the stored model state, the noise equivalent to its
                            samples, all losses, λ-returns, gradients of their sum, in float64; written as float32
dreamer_v3_5_fixtures.json  overrides of each variant, under SheepRL's and our names; numbers of parameters
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.dreamer_v3_5 import agent as theirs
from sheeprl.algos.dreamer_v3_5.dreamer_v3_5 import (
    actor_critic_loss,
    imagine,
    world_model_loss,
    world_model_loss_kwargs,
)
from sheeprl.algos.dreamer_v3_5.utils import Moments
from torch import Tensor
from torch.distributions import Independent, OneHotCategorical

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
    noise_of,
    results,
    write,
)

COMMON = {
    "algo.horizon": HORIZON,
    "algo.gamma": 0.9,
    "algo.dense_units": 6,
    "algo.cnn_channels_multiplier": 2,
    "algo.cnn_stages": [1, 2],
    "algo.world_model.discrete_size": 4,
    "algo.world_model.stochastic_size": 3,
    "algo.world_model.kl_free_nats": 0.25,
    "algo.world_model.recurrent_model.recurrent_state_size": 8,
    "algo.world_model.recurrent_model.hidden_size": 5,
    "algo.world_model.recurrent_model.blocks": 2,
    "algo.world_model.observation_model.block_space": 2,
    "algo.world_model.reward_model.bins": 15,
    "algo.critic.bins": 15,
    "algo.actor.ent_coef": 0.03,
    "algo.mlp_keys.encoder": ["state"],
    "algo.cnn_keys.encoder": ["rgb"],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "multi_discrete": {},
    "continuous": {
        "algo.cnn_keys.encoder": [],
        "algo.world_model.recurrent_model.dynamics_layers": 2,
        "algo.world_model.continue_discount": False,
        "algo.world_model.reward_grad": False,
        "algo.critic.replay_grad": False,
        "algo.critic.slow_regularizer": 0.5,
        "algo.loss_scales.dynamic": 0.5,
        "algo.loss_scales.continue": 2.0,
        "algo.loss_scales.policy": 0.7,
    },
    "dense": {"algo.mlp_keys.encoder": [], "algo.world_model.observation_model.block_space": 0},
}
SCALES = {"multi_discrete": (-1.25, 1.5), "continuous": (-1.25, 1.5), "dense": (0.1, 0.3)}  # before; below the floor


def rows(nvec: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the row with the stored state, and the rows after it; the third sequence is truncated after row 2."""
    data = batch(nvec, lambda rng: torch.randint(256, (LENGTH, COUNT, 3, 16, 16), generator=rng))
    data["truncated"] = torch.zeros_like(data["terminated"])
    data["truncated"][2, 2], data["is_first"][3, 2], data["rewards"][3, 2] = 1.0, 1.0, 0.0
    rng = torch.Generator().manual_seed(7)
    stored = {"deter": torch.randn(COUNT, 8, generator=rng), "stoch": torch.randint(4, (COUNT, 3), generator=rng)}
    return data | {"deter": stored["deter"].half().double(), "stoch": stored["stoch"].double()}


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec = () if name == "continuous" else NVEC
    cfg = compose("dreamer_v3_5", COMMON | changes | {"env.screen_size": 16})
    data, fabric = rows(nvec), Fabric(accelerator="cpu", devices=1, precision="64-true")
    world, actor, critic, target = modules = build(theirs, cfg, nvec, fabric, 16)
    samples = Samples()
    latent = staticmethod(lambda logits: samples.one_hot(SimpleNamespace(probs=logits.softmax(-1))).flatten(-2))
    later = {key: value[1:] for key, value in data.items() if key not in ("deter", "stoch", "actions")}
    obs = {key: later[key] for key in [*cfg.algo.cnn_keys.encoder, *cfg.algo.mlp_keys.encoder]}
    first, flags = later["is_first"], [later[key].squeeze(-1) for key in ("terminated", "rewards")]
    last = torch.maximum(later["terminated"], later["truncated"]).squeeze(-1)
    start = data["deter"][None], torch.nn.functional.one_hot(data["stoch"].long(), 4).flatten(-2).double()[None]
    with (
        mock.patch.object(Tensor, "float", Tensor.double),  # float64 in all losses
        mock.patch.object(theirs.RSSM, "sample", latent),
        mock.patch.object(OneHotCategorical, "sample", lambda self, *_: samples.one_hot(self)),
        mock.patch.object(Independent, "sample", lambda self, *_: samples.normal(self.base_dist)),
    ):
        inputs = (obs, data["actions"][:-1], first, later["rewards"], later["terminated"], *start)
        model, states, stoch, deter, metrics = world_model_loss(world, *inputs, **world_model_loss_kwargs(cfg))
        observed = samples.of("latent").reshape(LENGTH - 1, COUNT, -1)
        samples.drawn.clear()
        discount = 1.0 if cfg.algo.world_model.continue_discount else cfg.algo.gamma
        how = {"horizon": HORIZON, "discount": discount, "lmbda": cfg.algo.lmbda}
        with torch.no_grad():
            found = imagine(world, actor, critic, target, stoch, deter, **how)
        feat, actions, values, slow, returns, weights = found
        moments = Moments(cfg.algo.actor.moments.decay, cfg.algo.actor.moments.max, 0.05, 0.95)
        moments.low, moments.high = map(torch.tensor, SCALES[name])
        _, scale = moments(returns, fabric)
        behavior, more = actor_critic_loss(
            *(actor, critic, target, feat, actions, values, slow, returns, weights, scale, states, last, *flags),
            actions_dim=nvec or (2,),
            gamma=cfg.algo.gamma,
            lmbda=cfg.algo.lmbda,
            ent_coef=cfg.algo.actor.ent_coef,
            slow_regularizer=cfg.algo.critic.slow_regularizer,
            replay_loss=True,
            policy_scale=cfg.algo.loss_scales.policy,
            value_scale=cfg.algo.loss_scales.value,
            replay_value_scale=cfg.algo.loss_scales.replay_value,
        )
        loss = model + behavior
        content = results(name, nvec, data, modules, (loss, loss, loss), {})
    others = {f"metrics/{key}": value for key, value in (metrics | more).items()} | noise_of(observed, samples, nvec)
    others |= {"loss": loss, "returns": returns, "weights": weights, "low": moments.low, "high": moments.high}
    return content | {
        f"{name}/{key}": value.detach().numpy().astype(np.int64 if "choice" in key else np.float32)
        for key, value in others.items()
    }


def main() -> None:
    sizes = {
        size: count_size(theirs, "dreamer_v3_5", size) for size in ("1M", "12M", "25M", "50M", "100M", "200M", "400M")
    }
    write("dreamer_v3_5", make, COMMON, VARIANTS, nvec=NVEC, scales=SCALES, sizes=sizes)


if __name__ == "__main__":
    main()
