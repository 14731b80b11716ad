"""Inputs of SAC and its variants from golden values: learners, transitions, and updates against SB3."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.sac import learner as sac
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Trajectory
from tests.golden.fixtures import arrays, check_numbers, check_state, part, settings, tensors
from tests.learning.assembly import context

SAC = settings("sac")
SPEC = EnvSpec(
    "Golden-v0",
    {"state": ArraySpec((5,), "float64")},
    ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
)
STATISTICS = {"ra_mean": "mean", "ra_var": "variance", "steps": "count", "bias": "shift"}  # sb3-contrib's -> ours
LOSSES = {"actor_loss": "policy_loss", "critic_loss": "value_loss", "ent_coef_loss": "alpha_loss"}


def make_learner(variant: str, **changes: Any) -> Any:
    """Return a learner in float64; `changes` are merged into the values of SAC's golden config."""
    setting = SAC["common"] | SAC["variants"][variant]
    optimizer = {"name": "adam", "lr": setting["lr"], "eps": 1e-8}
    network = {"hidden_size": 8, "optimizer": optimizer}
    values = {
        "name": "sac",
        "total_steps": 1000,
        "gamma": setting["gamma"],
        "tau": setting["tau"],
        "actor": network | {"log_std_min": -20.0},
        "critic": network | {"n": setting["n"]},
        "alpha": {"optimizer": optimizer} | {key: setting[key] for key in ("alpha", "target_entropy", "fixed")},
    }
    for key, change in changes.items():
        values[key] = values[key] | change if isinstance(values.get(key), dict) else change
    # Other weights than those of seed 42 amplify rounding: with seed 0, SimBa differs by 6e-11.
    learner: Any = sac.build(context(values, SPEC, 1, precision="64-true", seed=42))[0]
    for module in parts_of(learner).values():  # keep observations in float64, where networks get float32
        module.encoder._vector = functools.partial(read_vector, module.encoder)
    return learner


def parts_of(learner: Any) -> dict[str, Any]:
    """Return actor, critics and, if the algorithm has them, target critics by their names in SB3."""
    parts = {"actor": learner.agent, "critic": learner.critics}
    return parts | ({"critic_target": learner.target.module} if learner.target else {})


def read_vector(encoder: Any, obs: dict[str, Tensor], lead: int) -> Tensor:
    x, norm = obs["state"], encoder.normalizer
    return x if norm is None else ((x - norm.moments.mean) / norm.moments.scale()).clamp(-norm.clip, norm.clip)


def transitions(
    given: dict[str, Tensor],
    obs: dict[str, Tensor] | None = None,
    next_obs: dict[str, Tensor] | None = None,
    past: dict[str, Tensor] | None = None,
) -> Batch:
    """Return transitions [1, N] as a replay buffer gives them; `done` is a termination.

    Args:
        given: u, reward, done and, if `obs` is not given, obs and next_obs, [N, ...].
        obs, next_obs: observations [N, ...].
        past: rows before the transitions.
    """
    no, zero = torch.zeros(len(given["reward"]), dtype=torch.bool), torch.zeros_like(given["reward"])
    obs, next_obs = obs or {"state": given["obs"]}, next_obs or {"state": given["next_obs"]}
    row = [value[None] for value in (given["u"], zero, no, no, no)]
    steps = Trajectory({key: value[None] for key, value in obs.items()}, *row, past=past or {})
    return Batch(steps, Trajectory(next_obs, given["u"], given["reward"], given["done"].bool(), no, no), 0)


def ours(weights: dict[str, np.ndarray], place: str) -> dict[str, Tensor]:
    """Return weights and statistics of one part under our names."""
    given = tensors(part(weights, f"{place}."))
    normed = {name.rpartition(".")[0] for name in given if name.endswith("ra_mean")}
    named: dict[str, Tensor] = {}
    for name, value in given.items():
        layer, _, kind = name.rpartition(".")
        kind = STATISTICS.get(kind, kind) if layer in normed else kind
        if layer.startswith("qf"):  # qf0.2
            named[f"members.{layer[2]}.layers.{layer[4:]}.{kind}"] = value
        elif layer.startswith("latent_pi"):
            named[f"{layer.replace('latent_pi', 'actor.layers')}.{kind}"] = value
    if place == "actor":
        for kind in ("weight", "bias"):
            named[f"head.linear.{kind}"] = torch.cat([given[f"mu.{kind}"], given[f"log_std.{kind}"]])
    return named


def check_updates(learner: Any, file: str, variant: str, noise: np.ndarray) -> None:
    """Check weights of all networks, α and the losses after several gradient steps in float64.

    Args:
        learner: its weights are replaced by the initial ones of the file.
        file: name of the golden values.
        variant: its variant.
        noise: [steps, 2, N, A], of the target and of the policy.
    """
    content = arrays(file)
    initial, final = (part(content, f"{when}/{variant}/") for when in ("initial", "final"))
    for name, module in parts_of(learner).items():
        module.load_state_dict(ours(initial, name))
    alpha = SAC["common"]["alpha"]
    log_alpha = initial.get("log_ent_coef", np.log(np.float64(np.float32(alpha))))  # SB3 stores a fixed α in float32
    learner.temperature.log_alpha.data.fill_(float(log_alpha.item()))
    batches, metrics = part(content, "batches/"), dict[str, Any]()
    for step, drawn in enumerate(noise):
        learner.noise = Drawn(iter(torch.from_numpy(drawn)))
        batch = transitions(tensors({name: value[step] for name, value in batches.items()}))
        metrics |= learner.update(batch, np.random.default_rng(0))
    for name, module in parts_of(learner).items():
        check_state(module, ours(final, name), 1e-11, name)
    if "log_ent_coef" in final:
        assert abs(learner.temperature.log_alpha.item() - float(final["log_ent_coef"].item())) < 1e-11
    else:
        assert abs(learner.temperature.alpha.item() - alpha) < 1e-7
    logged = part(content, f"logged/{variant}/")
    check_numbers(metrics, {f"Loss/{LOSSES[name]}": value for name, value in logged.items()}, 1e-11)
