"""Write the golden values of Dreamer V1: losses of SheepRL 0.8.4 for given weights, one batch and its samples.

python3.11 -m venv /tmp/oracle
/tmp/oracle/bin/pip install torch==2.13.0 sheeprl==0.8.4
/tmp/oracle/bin/python -m tests.golden.make_dreamer_v1_fixtures

dreamer_v1.npz              for every variant: weights, batch, the noise equivalent to its samples, and all losses,
                            λ-returns and gradients, before clipping, in float64; written as float32
dreamer_v1_fixtures.json    overrides of each variant, under SheepRL's and our names; resolved presets
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
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

from tests.golden.make_dreamer_v2_fixtures import draw_squashed, pictures
from tests.golden.sheeprl_dreamers import HORIZON, Samples, batch, compose, disturb, entries, leaves, noise_of, stored

HERE = Path(__file__).parent
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
    obs_space = spaces.Dict({"rgb": spaces.Box(0, 255, (3, 64, 64), np.uint8), "state": spaces.Box(-1, 1, (4,))})
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    world, actor, critic, _ = theirs.build_agent(fabric, nvec or (2,), not nvec, cfg, obs_space)
    for module in (world, actor, critic):
        module.double()
    disturb(world, actor, critic)
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
    metrics = {f"{'Loss' if key.endswith('loss') else 'State'}/{key}": value for key, value in found.items()}
    metrics |= {"Loss/world_model_loss": loss, "Loss/policy_loss": policy_loss, "Loss/value_loss": value_loss}
    modules = {"world": world, "actor": actor, "critic": critic}
    content = entries(data, modules, {"world": loss, "actor": policy_loss, "critic": value_loss})
    content |= {f"metrics/{key}": value for key, value in metrics.items()} | noise_of(observed, samples, nvec)
    content |= {"returns": returns, "discount": discount}
    if not cfg.algo.cnn_keys.encoder:
        del content["batch/rgb"]
    return stored({f"{name}/{key}": value for key, value in content.items()}, nvec)


def count(exp: str, ends: bool) -> dict[str, int]:
    """Return the number of parameters for images of 64 × 64 and 9 actions."""
    keys = {"algo.mlp_keys.encoder": [], "algo.mlp_keys.decoder": [], "algo.world_model.use_continues": ends}
    fabric, obs_space = Fabric(accelerator="cpu"), spaces.Dict({"rgb": spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    world, actor, critic, _ = theirs.build_agent(fabric, (9,), False, compose(exp, keys), obs_space)
    parts = {"world_model": world, "actor": actor, "critic": critic}
    return {name: sum(p.numel() for p in module.parameters()) for name, module in parts.items()}


def main() -> None:
    Distribution.set_default_validate_args(False)  # like its command: γ is not a sample of a Bernoulli variable
    content: dict[str, np.ndarray] = {}
    for name, changes in VARIANTS.items():
        content |= make(name, changes)
    np.savez_compressed(HERE / "dreamer_v1.npz", **content)
    names = ("dreamer_v1", "dreamer_v1_benchmarks")
    facts = {
        "common": COMMON,
        "variants": VARIANTS,
        "choices": CHOICES,
        "sizes": {name: count(name, ends=name == "dreamer_v1") for name in names},
        "presets": {name: leaves(name) for name in names},
        "sheeprl": "0.8.4",
        "torch": torch.__version__,
    }
    (HERE / "dreamer_v1_fixtures.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
