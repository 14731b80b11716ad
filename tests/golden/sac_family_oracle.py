"""Checks of DroQ, CrossQ and SimBa: SAC's learner with their presets, against sb3-contrib and published formulas.

CrossQ is compared with sb3-contrib (make_crossq_fixtures.py). DroQ and SimBa are compared with `closed_form`,
written from the papers: networks of their figures, losses of their algorithms, torch's optimizers.
A check takes the module under test as an argument, like those of `oracle`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.algorithms.sac import crossq, droq, simba
from rlcore.functional.noise import Drawn
from rlcore.nn.batch_norm import BatchNorm
from rlcore.types import Batch, Trajectory
from tests.golden.oracle import fixture, part
from tests.golden.sac_oracle import MADE, make_learner

BATCH, OBS, ACTIONS, UNITS, STEPS = 24, 5, 2, 8, 4
BETAS = (0.5, 0.999)
RATE = MADE["common"]["lr"]
CLIP = 1.5  # for normalized observations: small enough to clip some
# Keys in addition to the presets; the formulas below read them here.
SETTINGS: dict[str, dict[str, Any]] = {
    "droq": {"policy_delay": 2, "critic": {"dropout": 0.3, "n": 3}},
    "simba": {
        "policy_delay": 1,
        "hidden_size": UNITS,
        "normalize_obs": True,
        "obs_clip": CLIP,
        "actor": {"mlp_layers": 1, "optimizer": {"name": "adamw", "lr": RATE, "eps": 1e-8, "weight_decay": 0.1}},
        "critic": {"optimizer": {"name": "adamw", "lr": RATE, "eps": 1e-8, "weight_decay": 0.1}},
        "alpha": {"target_entropy_scale": 0.5},
    },
    "categorical": {"policy_delay": 1, "critic": {"loss": "categorical", "bins": 7}},
}


def in_float64(learner: Any) -> None:
    """Keep observations in float64, normalized if configured, where networks get float32."""
    for module in (learner.agent, learner.critics, *([learner.target.module] if learner.target else [])):
        module.encoder._vector = functools.partial(read_vector, module.encoder)


def read_vector(encoder: Any, obs: dict[str, Tensor], lead: int) -> Tensor:
    x, norm = obs["state"], encoder.normalizer
    return x if norm is None else ((x - norm.moments.mean) / norm.moments.scale()).clamp(-norm.clip, norm.clip)


def batch_of(given: dict[str, Tensor]) -> Batch:
    """Return transitions [1, N], whose `done` is a termination, as a replay buffer gives them."""
    none, nothing = torch.zeros(len(given["reward"]), dtype=torch.bool), torch.zeros_like(given["reward"])
    steps = Trajectory(
        {"state": given["obs"][None]}, given["u"][None], nothing[None], none[None], none[None], none[None]
    )
    last = Trajectory({"state": given["next_obs"]}, given["u"], given["reward"], given["done"].bool(), none, none)
    return Batch(steps, last, 0)


# CrossQ ---------------------------------------------------------------------------------------------------------------

NAMES = {"ra_mean": "mean", "ra_var": "variance", "steps": "count", "bias": "shift"}


def theirs(weights: dict[str, np.ndarray], place: str) -> dict[str, Tensor]:
    """Return sb3-contrib's weights and statistics of one part under our names."""
    given = {name: torch.from_numpy(value) for name, value in part(weights, f"{place}.").items()}
    normed = {name.rpartition(".")[0] for name in given if name.endswith("ra_mean")}
    made: dict[str, Tensor] = {}
    for name, value in given.items():
        layer, _, kind = name.rpartition(".")
        kind = NAMES.get(kind, kind) if layer in normed else kind
        if layer.startswith("qf"):  # qf0.2
            made[f"members.{layer[2]}.layers.{layer[4:]}.{kind}"] = value
        elif layer.startswith("latent_pi"):
            made[f"{layer.replace('latent_pi', 'actor.layers')}.{kind}"] = value
    if place == "actor":
        for kind in ("weight", "bias"):
            made[f"head.linear.{kind}"] = torch.cat([given[f"mu.{kind}"], given[f"log_std.{kind}"]])
    return made


def check_crossq(module: ModuleType, variant: str) -> None:
    """Check weights, running statistics and α after four steps, two of them of the policy, without targets."""
    content = fixture("crossq")
    warmup = {"batch_norm": 100_000, "renorm": 0}[variant]
    network = {"optimizer": {"lr": RATE, "betas": BETAS, "eps": 1e-8}, "dense_act": "tanh", "renorm_warmup": warmup}
    learner = make_learner(module, "base", crossq.Config, name="crossq", policy_delay=2, actor=network, critic=network)
    in_float64(learner)
    initial, final = (part(content, f"{when}/{variant}/") for when in ("initial", "final"))
    parts = {"actor": learner.agent, "critic": learner.critics}
    for name, target in parts.items():
        target.load_state_dict(theirs(initial, name))
        for each in target.modules():
            if isinstance(each, BatchNorm):
                each.eps = 0.0
    learner.temperature.log_alpha.data.fill_(float(initial["log_ent_coef"].item()))
    batches, metrics = part(content, "batches/"), dict[str, Any]()
    for step, noise in enumerate(content["noise"]):
        learner.noise = Drawn(iter(torch.from_numpy(noise)))
        batch = batch_of({name: torch.from_numpy(value[step]) for name, value in batches.items()})
        metrics |= learner.update(batch, np.random.default_rng(0))
    for name, target in parts.items():
        expected, found = theirs(final, name), target.state_dict()
        assert expected.keys() == found.keys(), expected.keys() ^ found.keys()
        gap = max((found[key] - value).abs().max().item() for key, value in expected.items())
        assert gap < 1e-11, f"{name} differs by {gap:.1e}"
    assert abs(learner.temperature.log_alpha.item() - float(final["log_ent_coef"].item())) < 1e-11
    for name, key in (("actor_loss", "policy_loss"), ("critic_loss", "value_loss")):
        assert abs(float(metrics[f"Loss/{key}"]) - float(content[f"logged/{variant}/{name}"])) < 1e-11, name


def check_acting(module: ModuleType) -> None:
    """Check that agents and served policies normalize by running statistics and do not change them."""
    learner = make_learner(module, "base", crossq.Config, name="crossq")
    in_float64(learner)
    before = {name: value.clone() for name, value in learner.agent.state_dict().items()}
    obs = torch.randn(6, OBS, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4
    first = torch.ones(6, dtype=torch.bool)
    together = learner.agent.act((), {"state": obs}, first, None, greedy=True)[1]
    alone = [learner.agent.act((), {"state": row[None]}, first[:1], None, greedy=True)[1][0] for row in obs]
    assert (together - torch.stack(alone)).abs().max() < 1e-12
    assert all(torch.equal(value, before[name]) for name, value in learner.agent.state_dict().items())


# DroQ and SimBa -------------------------------------------------------------------------------------------------------

Weights = dict[str, Tensor]


def affine(weights: Weights, place: str, x: Tensor) -> Tensor:
    return x @ weights[f"{place}.weight"].T + weights[f"{place}.bias"]


def normed(weights: Weights, place: str, x: Tensor) -> Tensor:
    """Return LayerNorm (Ba et al. 2016): every row normalized by its mean and biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return unit * weights[f"{place}.weight"] + weights[f"{place}.bias"]


def droq_network(weights: Weights, place: str, x: Tensor, noise: Iterator[Tensor] | None) -> Tensor:
    """Return figure 1 of DroQ: twice linear, dropout, LayerNorm, ReLU, then linear."""
    for layer in (0, 4):
        x = affine(weights, f"{place}.{layer}", x)
        if noise is not None:
            x = torch.where(next(noise).bool(), x / 0.7, torch.zeros_like(x))
        x = normed(weights, f"{place}.{layer + 2}", x).clamp(min=0)
    return affine(weights, f"{place}.8", x)


def plain_network(weights: Weights, place: str, x: Tensor) -> Tensor:
    return affine(weights, f"{place}.2", affine(weights, f"{place}.0", x).clamp(min=0)).clamp(min=0)


def simba_network(weights: Weights, place: str, x: Tensor, blocks: int) -> Tensor:
    """Return figure 4 of SimBa: linear, residual blocks with an inner layer of four times the width, LayerNorm."""
    x = affine(weights, f"{place}.0", x)
    for block in range(1, blocks + 1):
        inner = affine(weights, f"{place}.{block}.wide", normed(weights, f"{place}.{block}.norm", x)).clamp(min=0)
        assert inner.shape[-1] == 4 * x.shape[-1]
        x = x + affine(weights, f"{place}.{block}.narrow", inner)
    return normed(weights, f"{place}.{blocks + 1}", x)


GRID = torch.linspace(-20, 20, 7, dtype=torch.float64)  # of log(1 + |Q|), with the sign of Q


def number_of(logits: Tensor) -> Tensor:
    """Map logits [..., 7] to the mean of the distribution over the bins."""
    z = (logits.softmax(-1) * GRID).sum(-1)
    return z.sign() * z.abs().expm1()


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy per row: the two bins next to y share it linearly."""
    z = y.sign() * y.abs().log1p()
    near = (1 - (z[:, None] - GRID).abs() / (GRID[1] - GRID[0])).clamp(min=0)
    return F.cross_entropy(logits, near, reduction="none")


def critics_of(name: str, weights: Weights, obs: Tensor, action: Tensor, noise: Tensor | None) -> Tensor:
    """Return the outputs of the critics, [N, B]; of categorical ones [N, B, 7]."""
    x, left = torch.cat([obs, action], -1), None if noise is None else iter(noise)
    if name == "droq":
        made = [droq_network(weights, f"members.{i}.layers", x, left) for i in range(3)]
    elif name == "categorical":
        places = [f"members.{i}.layers" for i in range(2)]
        return torch.stack([affine(weights, f"{place}.4", plain_network(weights, place, x)) for place in places])
    else:
        made = [
            affine(weights, f"members.{i}.layers.4", simba_network(weights, f"members.{i}.layers", x, 2))
            for i in range(2)
        ]
    return torch.cat(made, -1).T


def policy_of(name: str, weights: Weights, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions [N, A] in ±1 and their log-probabilities [N]."""
    x = (
        plain_network(weights, "actor.layers", obs)
        if name != "simba"
        else simba_network(weights, "actor.layers", obs, 1)
    )
    mean, log_std = affine(weights, "head.linear", x).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    u = mean + log_std.exp() * noise
    normal = -0.5 * noise.square() - log_std - 0.5 * np.log(2 * np.pi)
    return u.tanh(), (normal + 2 * u.cosh().log()).sum(-1)  # 1 - tanh² = 1 / cosh²


def standardised(obs: Tensor, seen: Tensor) -> Tensor:
    """Normalize by mean and variance of all rows so far (SimBa, section 4.1)."""
    return ((obs - seen.mean(0)) / (seen.var(0, correction=0) + 1e-8).sqrt()).clamp(-CLIP, CLIP)


def closed_form(
    name: str, parts: dict[str, Weights], log_alpha: Tensor, batches: list[dict[str, Tensor]], draws: list[list[Tensor]]
) -> None:
    """Update the weights by the published algorithm; `draws` are in the order of a step."""
    gamma, tau, delay = MADE["common"]["gamma"], MADE["common"]["tau"], SETTINGS[name]["policy_delay"]
    actor, critic, slow = (parts[place] for place in ("actor", "critic", "target"))
    rule: Any = torch.optim.AdamW if name == "simba" else torch.optim.Adam
    decay = {"weight_decay": 0.1} if name == "simba" else {}
    of_critic, of_actor = (rule(list(each.values()), lr=RATE, **decay) for each in (critic, actor))
    of_alpha = torch.optim.Adam([log_alpha], lr=RATE)
    entropy = -ACTIONS * (0.5 if name == "simba" else 1.0)
    dropped, read = name == "droq", number_of if name == "categorical" else lambda q: q
    seen = list[Tensor]()
    for step, (batch, drawn) in enumerate(zip(batches, draws, strict=True), 1):
        if name == "simba":
            seen.append(batch["obs"].float().double())  # statistics are over the rows of a replay buffer
            batch = batch | {key: standardised(batch[key], torch.cat(seen)) for key in ("obs", "next_obs")}
        left, alpha = iter(drawn), log_alpha.detach().exp()
        masks, slow_masks = (next(left), next(left)) if dropped else (None, None)
        with torch.no_grad():
            next_action, next_logprob = policy_of(name, actor, batch["next_obs"], next(left))
            lowest = read(critics_of(name, slow, batch["next_obs"], next_action, slow_masks)).amin(0)
            y = batch["reward"] + gamma * (1 - batch["done"]) * (lowest - alpha * next_logprob)
        q = critics_of(name, critic, batch["obs"], batch["u"].tanh(), masks)
        of_critic.zero_grad()
        one = (
            (lambda q, y: 0.5 * F.mse_loss(q, y)) if q.ndim == 2 else lambda logits, y: cross_entropy(logits, y).mean()
        )
        sum(one(each, y) for each in q).backward()  # pyright: ignore[reportAttributeAccessIssue]
        of_critic.step()
        if step % delay == 0:
            masks = next(left) if dropped else None
            action, logprob = policy_of(name, actor, batch["obs"], next(left))
            q = read(critics_of(name, critic, batch["obs"], action, masks))
            of_actor.zero_grad()
            (alpha * logprob - (q.mean(0) if dropped else q.amin(0))).mean().backward()
            of_actor.step()
            of_alpha.zero_grad()
            (-log_alpha * (logprob.detach() + entropy)).mean().backward()
            of_alpha.step()
        with torch.no_grad():
            for key, value in slow.items():
                value += tau * (critic[key] - value)


def check_family(module: ModuleType, name: str) -> None:
    """Check weights of actor, critics and targets, and α, after four steps in float64."""
    config = {"droq": droq.Config, "simba": simba.Config}.get(name, module.Config)
    named = {} if name == "categorical" else {"name": name}
    learner = make_learner(module, "base", config, **named, **SETTINGS[name])
    in_float64(learner)
    rng, modules = np.random.default_rng(3), (learner.agent, learner.critics, learner.target.module)
    parts: dict[str, Weights] = {}
    for place, each in zip(("actor", "critic", "target"), modules, strict=True):
        weights = {key: value for key, value in each.state_dict().items() if isinstance(value, Tensor)}
        held = {key: value + 0.3 * torch.from_numpy(rng.normal(size=value.shape)) for key, value in weights.items()}
        each.load_state_dict(each.state_dict() | held)
        parts[place] = {key: value.clone().requires_grad_(place != "target") for key, value in held.items()}
    log_alpha = torch.tensor(np.log(MADE["common"]["alpha"]), requires_grad=True)
    learner.temperature.log_alpha.data.fill_(log_alpha.item())
    batches, draws = [], []
    for step in range(1, STEPS + 1):
        shapes = {"obs": (BATCH, OBS), "next_obs": (BATCH, OBS), "u": (BATCH, ACTIONS), "reward": (BATCH,)}
        batch = {key: torch.from_numpy(rng.normal(size=shape)) for key, shape in shapes.items()}
        batches.append(batch | {"done": torch.from_numpy((rng.random(BATCH) < 0.3).astype(np.float64))})
        masks, noise = ((6, BATCH, UNITS) if name == "droq" else None), (BATCH, ACTIONS)
        order = [masks, masks, noise, *([masks, noise] if step % SETTINGS[name]["policy_delay"] == 0 else [])]
        draw = {
            masks: lambda size: (rng.random(size) < 0.7).astype(np.uint8),
            noise: lambda size: rng.normal(size=size),
        }
        draws.append([torch.from_numpy(draw[shape](shape)) for shape in order if shape])
    for batch, drawn in zip(batches, draws, strict=True):
        learner.noise = Drawn(iter(drawn))
        learner.update(batch_of(batch), np.random.default_rng(0))
    closed_form(name, parts, log_alpha, batches, draws)
    for (place, expected), each in zip(parts.items(), modules, strict=True):
        found = each.state_dict()
        gap = max((found[key] - value.detach()).abs().max().item() for key, value in expected.items())
        assert gap < 1e-11, f"{place} differs by {gap:.1e}"
    assert abs(learner.temperature.log_alpha.item() - log_alpha.item()) < 1e-11
