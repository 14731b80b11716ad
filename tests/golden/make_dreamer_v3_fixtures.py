"""Writes Dreamer V3's golden values: what SheepRL 0.8.4's losses make of given weights, one batch and its samples.

python3.11 -m venv /tmp/oracle
/tmp/oracle/bin/pip install torch==2.13.0 sheeprl==0.8.4
/tmp/oracle/bin/python -m tests.golden.make_dreamer_v3_fixtures

dreamer_v3.npz              for every variant: weights, batch, the noise that stands for its samples, and all losses,
                            λ-returns and gradients, before clipping, in float64; written as float32
dreamer_v3_fixtures.json    overrides of each variant, under names that are SheepRL's and ours
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import hydra
import numpy as np
import torch
from gymnasium import spaces
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from sheeprl.algos.dreamer_v3 import agent as theirs
from sheeprl.algos.dreamer_v3.dreamer_v3 import actor_loss, critic_loss, imagine, world_model_loss
from sheeprl.algos.dreamer_v3.dreamer_v3 import world_model_loss_kwargs as kwargs_of
from sheeprl.algos.dreamer_v3.utils import Moments
from sheeprl.utils.utils import dotdict
from torch import Tensor
from torch.distributions import Independent, OneHotCategoricalStraightThrough

HERE = Path(__file__).parent
LENGTH, COUNT, HORIZON = 5, 3, 4
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
    "decoupled": {
        "algo.actor.objective_mix": 1.0,
        "algo.world_model.decoupled_rssm": True,
        "algo.world_model.learnable_initial_recurrent_state": False,
        "algo.cnn_keys.encoder": [],
    },
}
NVEC = (3, 2)
SCALES = {name: (-1.25, 1.5) for name in VARIANTS} | {"decoupled": (0.1, 0.3)}  # before the step; below the floor


def compose(changes: dict[str, Any]) -> Any:
    """SheepRL's config, resolved."""
    extra = {"algo.cnn_keys.decoder": changes.get("algo.cnn_keys.encoder", COMMON["algo.cnn_keys.encoder"])}
    extra["env.screen_size"] = 16
    typed = [f"{key}={'null' if value is None else value}" for key, value in (COMMON | changes | extra).items()]
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        made = hydra.compose("config", ["exp=dreamer_v3", "env=dummy", *typed])
    return dotdict(OmegaConf.to_container(made, resolve=True, throw_on_missing=False))


class Samples:
    """What is drawn, in its order, as the noise by which others draw the same."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, Tensor]] = []

    def one_hot(self, distribution: Any) -> Tensor:
        """A sample of one-hot categoricals; noted are the middle of its share of the unit interval, and its class."""
        p = distribution.probs
        index = torch.distributions.Categorical(probs=p.detach()).sample()
        below = torch.cat([torch.zeros_like(p[..., :1]), p.detach().cumsum(-1)], -1)
        middle = (below.gather(-1, index[..., None]) + below.gather(-1, index[..., None] + 1)).squeeze(-1) / 2
        self.drawn.append(("latent" if p.ndim == 4 else "choice", middle if p.ndim == 4 else index))
        return torch.nn.functional.one_hot(index, p.shape[-1]).to(p) + (p - p.detach())

    def normal(self, distribution: Any) -> Tensor:
        """A sample of normals; noted is their noise."""
        noise = torch.randn_like(distribution.mean)
        self.drawn.append(("normal", noise))
        return distribution.mean + distribution.stddev * noise

    def of(self, kind: str) -> Tensor:
        """All noise of a kind."""
        return torch.cat([noise for name, noise in self.drawn if name == kind])


def batch(discrete: bool) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(5)
    is_first = torch.zeros(LENGTH, COUNT, 1, dtype=torch.float64)
    is_first[0], is_first[3, 1] = 1.0, 1.0
    terminated, reward = torch.zeros_like(is_first), torch.randn(LENGTH, COUNT, 1, generator=rng).double() * 3
    terminated[2, 1], terminated[4, 0] = 1.0, 1.0
    if discrete:
        index = [torch.randint(n, (LENGTH, COUNT), generator=rng) for n in NVEC]
        action = torch.cat([torch.nn.functional.one_hot(i, n) for i, n in zip(index, NVEC, strict=True)], -1).double()
    else:
        action = torch.rand(LENGTH, COUNT, 2, generator=rng).double() * 2 - 1
    return {
        "rgb": torch.randint(256, (LENGTH, COUNT, 3, 16, 16), generator=rng).double(),
        "state": (torch.randn(LENGTH, COUNT, 4, generator=rng) * 3).float().double(),
        "actions": action.float().double(),
        "rewards": reward.float().double() * (1 - is_first),
        "terminated": terminated,
        "is_first": is_first,
    }


def disturb(*modules: torch.nn.Module) -> None:
    """Weights away from where they begin, as numbers of float32."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.copy_((p + 0.15 * torch.randn(p.shape, generator=rng).double()).float().double())


def gradients(loss: Tensor, module: torch.nn.Module) -> dict[str, Tensor]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, found, strict=True)}


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    discrete = name in ("multi_discrete", "mixed")
    cfg, data = compose(changes), batch(discrete)
    obs_space = spaces.Dict({"rgb": spaces.Box(0, 255, (3, 16, 16), np.uint8), "state": spaces.Box(-1, 1, (4,))})
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    actions_dim = NVEC if discrete else (2,)
    world, actor, critic, target, _ = theirs.build_agent(fabric, actions_dim, not discrete, cfg, obs_space)
    for module in (world, actor, critic, target):
        module.double()
    disturb(world, actor, critic, target)
    samples = Samples()
    one_hot = mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self))
    with one_hot, mock.patch.object(Independent, "rsample", draw_normals(samples)):
        loss, posteriors, recurrent, metrics = world_model_loss(world, data, **kwargs_of(cfg))
        observed = samples.of("latent")
        samples.drawn.clear()
        clip = 0.0 if discrete else float(cfg.algo.actor.action_clip)
        how = {"horizon": HORIZON, "gamma": cfg.algo.gamma, "lmbda": cfg.algo.lmbda, "action_clip": clip}
        made = imagine(world, actor, critic, posteriors, recurrent, data["terminated"], **how)
    trajectories, actions, values, returns, discount = made
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
        actions_dim=actions_dim,
        ent_coef=cfg.algo.actor.ent_coef,
    )
    value_loss = critic_loss(critic, target, trajectories, returns, discount)
    metrics |= {"Loss/policy_loss": policy_loss, "Loss/value_loss": value_loss}
    found: dict[str, Tensor] = {f"batch/{key}": value for key, value in data.items()}
    for part, module in (("world", world), ("actor", actor), ("critic", critic), ("target", target)):
        found |= {f"weights/{part}/{key}": value for key, value in module.state_dict().items()}
    losses = (("world", loss, world), ("actor", policy_loss, actor), ("critic", value_loss, critic))
    for part, of, module in losses:
        found |= {f"gradients/{part}/{key}": value for key, value in gradients(of, module).items()}
    found |= {f"metrics/{key}": value for key, value in metrics.items()}
    found |= {"noise/observed": observed, "noise/imagined": samples.of("latent")}
    if discrete:
        choices = [index for kind, index in samples.drawn if kind == "choice"]
        found |= {f"noise/choice{i}": torch.cat(choices[i :: len(NVEC)]) for i in range(len(NVEC))}
    else:
        found["noise/normal"] = samples.of("normal")
    found |= {"returns": returns, "discount": discount, "low": moments.low, "high": moments.high}
    dtypes = {"noise/choice0": np.int64, "noise/choice1": np.int64, "batch/rgb": np.uint8}
    return {f"{name}/{key}": value.detach().numpy().astype(dtypes.get(key, np.float32)) for key, value in found.items()}


def draw_normals(samples: Samples) -> Any:
    """Sampling of independent distributions, with normals' noise noted."""
    plain = Independent.rsample

    def rsample(self: Any, *shape: Any) -> Tensor:
        base = self.base_dist
        return samples.normal(base) if isinstance(base, torch.distributions.Normal) else plain(self, *shape)

    return rsample


def count(size: str) -> dict[str, int]:
    """Parameters of a size, for pictures of 64 × 64 and 9 actions; nothing of them is made."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        made = hydra.compose("config", ["exp=dreamer_v3", f"algo=dreamer_v3_{size}", "env=dummy"])
    cfg = dotdict(OmegaConf.to_container(made, resolve=True, throw_on_missing=False))
    fabric, obs_space = Fabric(accelerator="cpu"), spaces.Dict({"rgb": spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    numbers = mock.patch.object(torch, "tensor", functools.partial(torch.tensor, device="cpu"))  # widths are computed
    stays = mock.patch.object(torch.nn.Module, "to", lambda self, *_, **__: self)
    with torch.device("meta"), numbers, stays:
        world, actor, critic, *_ = theirs.build_agent(fabric, (9,), False, cfg, obs_space)
    parts = {"world_model": world, "actor": actor, "critic": critic}
    return {name: sum(p.numel() for p in module.parameters()) for name, module in parts.items()}


def leaves(preset: str) -> dict[str, Any]:
    """Dotted keys of a resolved preset, without what only Hydra or a class that is named there reads."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        made = hydra.compose("config", [f"exp={preset}"])
    tree = OmegaConf.to_container(made, resolve=False)
    for group in ("hydra", "model_manager", "metric", "fabric", "checkpoint"):
        tree.pop(group, None)
    made = OmegaConf.create({key: tree[key] for key in ("algo", "env", "buffer", "seed")})
    flat: dict[str, Any] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, dict) and value:
            for key, part in value.items():
                walk(part, f"{place}.{key}" if place else key)
        else:
            flat[place] = value

    walk(OmegaConf.to_container(made, resolve=True, throw_on_missing=False), "")
    return flat


def main() -> None:
    content: dict[str, np.ndarray] = {}
    for name, changes in VARIANTS.items():
        content |= make(name, changes)
    np.savez_compressed(HERE / "dreamer_v3.npz", **content)
    sizes = {size: count(size) for size in ("XS", "S", "M", "L", "XL")}
    names = ("dreamer_v3", "dreamer_v3_100k_ms_pacman", "dreamer_v3_100k_boxing", "dreamer_v3_benchmarks")
    presets = {name: leaves(name) for name in names}
    facts = {
        "common": COMMON,
        "variants": VARIANTS,
        "nvec": NVEC,
        "scales": SCALES,
        "sizes": sizes,
        "presets": presets,
        "sheeprl": "0.8.4",
        "torch": torch.__version__,
    }
    (HERE / "dreamer_v3_fixtures.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
