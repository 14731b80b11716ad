"""DroQ, CrossQ and SimBa: SAC's learner with their presets, against sb3-contrib and published formulas; mutants.

CrossQ is compared with sb3-contrib (tests.golden.makers.crossq). DroQ and SimBa are compared with `closed_form`,
written from the papers: networks of their figures, losses of their algorithms, torch's optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.noise import Drawn
from rlcore.nn.batch_norm import BatchNorm
from tests.golden.fixtures import arrays
from tests.golden.mutants import Mutant, given, returned, swap
from tests.golden.off_policy import SAC, check_updates, make_learner, transitions

BATCH, OBS, ACTIONS, UNITS, STEPS = 24, 5, 2, 8, 4
BETAS = (0.5, 0.999)
RATE = SAC["common"]["lr"]
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


# CrossQ ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["batch_norm", "renorm"])
def test_crossq_matches_sb3_contrib_in_float64(variant: str) -> None:
    """Weights, running statistics and α after four steps, two of them of the policy, without targets."""
    warmup = {"batch_norm": 100_000, "renorm": 0}[variant]
    network = {"optimizer": {"lr": RATE, "betas": BETAS, "eps": 1e-8}, "dense_act": "tanh", "renorm_warmup": warmup}
    learner = make_learner("base", name="crossq", policy_delay=2, actor=network, critic=network)
    for module in (*learner.agent.modules(), *learner.critics.modules()):
        if isinstance(module, BatchNorm):
            module.eps = 0.0
    check_updates(learner, "crossq", variant, arrays("crossq")["noise"])


def test_crossq_acting_uses_running_statistics() -> None:
    """Agents and served policies normalize by running statistics and do not change them."""
    learner = make_learner("base", name="crossq")
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
    gamma, tau, delay = SAC["common"]["gamma"], SAC["common"]["tau"], SETTINGS[name]["policy_delay"]
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


@pytest.mark.parametrize("name", ["droq", "simba", "categorical"])
def test_sac_variant_updates_match_published_formulas(name: str) -> None:
    """Weights of actor, critics and targets, and α, after four steps in float64."""
    learner = make_learner("base", **{"name": "sac" if name == "categorical" else name} | SETTINGS[name])
    rng, modules = np.random.default_rng(3), (learner.agent, learner.critics, learner.target.module)
    parts: dict[str, Weights] = {}
    for place, each in zip(("actor", "critic", "target"), modules, strict=True):
        weights = {key: value for key, value in each.state_dict().items() if isinstance(value, Tensor)}
        held = {key: value + 0.3 * torch.from_numpy(rng.normal(size=value.shape)) for key, value in weights.items()}
        each.load_state_dict(each.state_dict() | held)
        parts[place] = {key: value.clone().requires_grad_(place != "target") for key, value in held.items()}
    log_alpha = torch.tensor(np.log(SAC["common"]["alpha"]), requires_grad=True)
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
        learner.update(transitions(batch), np.random.default_rng(0))
    closed_form(name, parts, log_alpha, batches, draws)
    for (place, expected), each in zip(parts.items(), modules, strict=True):
        found = each.state_dict()
        gap = max((found[key] - value.detach()).abs().max().item() for key, value in expected.items())
        assert gap < 1e-11, f"{place} differs by {gap:.1e}"
    assert abs(learner.temperature.log_alpha.item() - log_alpha.item()) < 1e-11


# Mutants --------------------------------------------------------------------------------------------------------------

NORM, RENORM = (partial(test_crossq_matches_sb3_contrib_in_float64, variant) for variant in ("batch_norm", "renorm"))
DROQ, SIMBA, BINS = (
    partial(test_sac_variant_updates_match_published_formulas, name) for name in ("droq", "simba", "categorical")
)
ACTING = test_crossq_acting_uses_running_statistics
CRITIC = "sac.Learner.critic_objective"
OF_BATCH, HIDDEN, BLOCK = "BatchNorm._of_batch", "mlp.hidden_layer", "ResidualBlock.forward"
MUTANTS: dict[str, Mutant] = {
    # Batch normalization and renormalization.
    "running statistics in the loss": Mutant("BatchNorm.forward", given(ranks="None"), NORM),
    "unbiased variance": Mutant(
        OF_BATCH, swap("sum_over(A, B.square().sum(0)) / count", "sum_over(A, B.square().sum(0)) / (count - 1)"), NORM
    ),
    "statistics that stand still": Mutant(OF_BATCH, swap("SHARE * (mean - self.mean)", "0 * mean"), NORM),
    "a variance that stands still": Mutant(OF_BATCH, swap("SHARE * (variance - A)", "0 * variance"), NORM),
    "no count of batches": Mutant(OF_BATCH, swap("self.count + 1", "self.count + 0"), NORM),
    "never renormalised": Mutant(OF_BATCH, swap("self.count > self.warmup", "self.count < 0"), RENORM),
    "renormalised at once": Mutant(OF_BATCH, swap("self.count > self.warmup", "self.count >= 0"), NORM),
    "renormalised a batch early": Mutant(OF_BATCH, swap("A > self.warmup", "A >= self.warmup"), RENORM),
    "r upside down": Mutant(OF_BATCH, swap("std / running", "running / std"), RENORM),
    "r not clipped": Mutant(OF_BATCH, swap("A.clamp(1 / R_MAX, R_MAX)", "A"), RENORM),
    "r clipped from above alone": Mutant(OF_BATCH, swap("1 / R_MAX", "0.0"), RENORM),
    "d not clipped": Mutant(OF_BATCH, swap("A.clamp(-D_MAX, D_MAX)", "A"), RENORM),
    "d dropped": Mutant(OF_BATCH, swap("A * (r / std) + d", "A * (r / std)"), RENORM),
    "the batch's mean for actions": Mutant("BatchNorm.forward", swap("x - self.mean", "x - x.mean(0)"), ACTING),
    # No targets: both batches through the critics at once.
    "the halves of the joint batch exchanged": Mutant(CRITIC, swap("A.chunk(2, 1)", "A.flip(1).chunk(2, 1)"), NORM),
    "a gradient through the target": Mutant(CRITIC, swap("next_q.detach()", "next_q"), NORM),
    "the policy's loss moves the critics' statistics": Mutant(
        "sac.Learner.actor_objective", swap("self.critics(A, B, masks)", "self.critics(A, B, masks, self.ranks)"), NORM
    ),
    "the policy's own statistics stand still": Mutant(
        "sac.Learner.actor_objective", swap("self.agent(A, self.ranks)", "self.agent(A)"), NORM
    ),
    "the target moves the policy's statistics": Mutant(
        CRITIC, swap("self.agent(batch.next_obs)", "self.agent(batch.next_obs, self.ranks)"), NORM
    ),
    # The policy's delay.
    "no delay": Mutant("sac.Config.delay", returned("1"), NORM),
    "a policy that never learns": Mutant("sac.Config.delay", returned("10**6"), NORM),
    "the first of each, not the last": Mutant(
        "sac.Learner.update", swap("self.updates % self.delay", "(self.updates - 1) % self.delay"), NORM
    ),
    # DroQ.
    "nothing dropped": Mutant("Dropout.forward", given(rng="None"), DROQ),
    "what is kept is not scaled": Mutant("Dropout.forward", swap("A / (1 - self.p)", "A"), DROQ),
    "dropped where it is to be kept": Mutant("Dropout.forward", swap("A.to(B)", "(1 - A).to(B)"), DROQ),
    "no dropout in the targets": Mutant(
        CRITIC, swap("self.target.module(A, B, target_masks)", "self.target.module(A, B, 0 * target_masks + 1)"), DROQ
    ),
    "the critics' masks in the targets": Mutant(
        CRITIC, swap("self.target.module(A, B, target_masks)", "self.target.module(A, B, masks)"), DROQ
    ),
    "no dropout for the policy": Mutant(
        "sac.Learner.actor_objective", swap("self.critics(A, B, masks)", "self.critics(A, B, 0 * masks + 1)"), DROQ
    ),
    "lowest critic for the policy": Mutant("sac.actor_loss", swap('kind == "min"', "True"), DROQ),
    "mean of the critics in the target": Mutant("soft_target", swap("A.amin(0)", "A.mean(0)"), DROQ),
    "no LayerNorm": Mutant(HIDDEN, given(layer_norm="False"), DROQ),
    "targets that stand still": Mutant("Target.update", given(tau="0.0"), DROQ),
    # SimBa.
    "observations as they are": Mutant("sac.Learner.update", swap("self.agent.encoder.observe(A, B)", "None"), SIMBA),
    "statistics of the last batch alone": Mutant(
        "RunningMoments.update", swap("self.count + count", "count + 0 * self.count"), SIMBA
    ),
    "unbiased running variance": Mutant(
        "RunningMoments.update",
        swap("total(_sum_rows(A, valid)) / count", "total(_sum_rows(A, valid)) / (count - 1)"),
        SIMBA,
    ),
    "no residual": Mutant(BLOCK, swap("x + A", "A"), SIMBA),
    "no LayerNorm in a block": Mutant(BLOCK, swap("self.norm(x)", "x"), SIMBA),
    "no activation in a block": Mutant(BLOCK, swap("self.act(A)", "A"), SIMBA),
    "target entropy not halved": Mutant("AlphaConfig.target", swap("A.target_entropy_scale", "1.0"), SIMBA),
    "mean of the critics for the policy": Mutant("sac.actor_loss", swap('kind == "min"', "False"), SIMBA),
    # Categorical critics; the two-hot code has its own tests.
    "squared error of bins": Mutant(CRITIC, swap("A if form else B", "B"), BINS),
    "one critic learns": Mutant("sac.categorical_critic_loss", swap("A.sum(0)", "A[0]"), BINS),
    "a most probable bin, not the mean": Mutant(
        "Critics.read", swap("A.mean(outputs)", "outputs.argmax(-1).to(outputs)"), BINS
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_sac_family_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises((AssertionError, KeyError)):
        mutant.check()
