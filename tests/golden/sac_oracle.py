"""Checks of SAC: our learner against Stable-Baselines3.

A check takes the module under test as an argument, like those of `oracle`, whose helpers it uses.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks
from rlcore.types import Batch, Context, Trajectory
from tests.golden.oracle import HERE, fabric, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "sac_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
SPEC = EnvSpec(
    "Golden-v0",
    {"state": ArraySpec((5,), "float64")},
    ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
)


def make_learner(module: ModuleType, variant: str, config: Any = None, **changes: Any) -> Any:
    """Return a learner of the module, with another `config` if given; `changes` are merged into its values."""
    setting = MADE["common"] | VARIANTS[variant]
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
    run = RunConfig(algo=build(config or module.Config, values, "algo."), env=EnvConfig(id=SPEC.id, num_envs=1))
    result = fabric("64-true")
    return module.build(Context(run, SPEC, result, FabricRanks(result), num_envs=1))[0]


def ours(weights: dict[str, np.ndarray], place: str) -> dict[str, Tensor]:
    """Return SB3's weights of one part under our names."""
    given = {name: torch.from_numpy(value) for name, value in part(weights, f"{place}.").items()}
    if place != "actor":  # qf0.2.weight
        return {f"members.{name[2]}.layers.{name[4:]}": value for name, value in given.items()}
    layers = {name.replace("latent_pi", "actor.layers"): v for name, v in given.items() if name.startswith("latent_pi")}
    heads = {kind: torch.cat([given[f"mu.{kind}"], given[f"log_std.{kind}"]]) for kind in ("weight", "bias")}
    return layers | {f"head.linear.{kind}": value for kind, value in heads.items()}


def parts_of(learner: Any) -> dict[str, dict[str, Tensor]]:
    modules = {"actor": learner.agent, "critic": learner.critics, "critic_target": learner.target.module}
    return {name: dict(module.state_dict()) for name, module in modules.items()}


def check_update(module: ModuleType, variant: str) -> None:
    """Check weights of all networks and α after several gradient steps in float64, and the losses of the last."""
    content = fixture("sac")
    learner = make_learner(module, variant)
    for module in (learner.agent, learner.critics, learner.target.module):
        module.encoder._vector = lambda obs, lead: obs["state"]  # in float64, where networks get float32
    initial, final = (part(content, f"{when}/{variant}/") for when in ("initial", "final"))
    for name, target in (
        ("actor", learner.agent),
        ("critic", learner.critics),
        ("critic_target", learner.target.module),
    ):
        target.load_state_dict(ours(initial, name))
    # SB3 stores a fixed α in float32.
    log_alpha = initial.get("log_ent_coef", np.log(np.float64(np.float32(MADE["common"]["alpha"]))))
    learner.temperature.log_alpha.data.fill_(float(log_alpha.item()))
    batches = part(content, "batches/")
    for step, (of_actor, of_target) in enumerate(content["noise"]):
        batch = _batch({name: torch.from_numpy(value[step]) for name, value in batches.items()})
        learner.noise = Drawn(iter(torch.from_numpy(np.stack([of_target, of_actor]))))
        metrics = learner.update(batch, np.random.default_rng(0))
    for name, state in parts_of(learner).items():
        expected = ours(final, name)
        assert expected.keys() == state.keys(), expected.keys() ^ state.keys()
        gap = max((state[key] - value).abs().max().item() for key, value in expected.items())
        assert gap < 1e-11, f"{name} differs by {gap:.1e}"
    if "log_ent_coef" in final:
        assert abs(learner.temperature.log_alpha.item() - float(final["log_ent_coef"].item())) < 1e-11
    else:
        assert abs(learner.temperature.alpha.item() - MADE["common"]["alpha"]) < 1e-7
    names = {"actor_loss": "policy_loss", "critic_loss": "value_loss", "ent_coef_loss": "alpha_loss"}
    for theirs, value in part(content, f"logged/{variant}/").items():
        assert abs(float(metrics[f"Loss/{names[theirs]}"]) - float(value)) < 1e-11, theirs


def _batch(given: dict[str, Tensor]) -> Batch:
    """Return transitions [1, N] of the fixture, whose `done` is a termination, as a replay buffer gives them."""
    count = len(given["reward"])
    none, nothing = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.float64)
    steps = Trajectory(
        {"state": given["obs"][None]}, given["u"][None], nothing[None], none[None], none[None], none[None]
    )
    done = given["done"].bool()
    return Batch(steps, Trajectory({"state": given["next_obs"]}, given["u"], given["reward"], done, none, none), 0)


def check_n_step(module: ModuleType) -> None:
    """Check three steps from row 0 of four episodes by hand; γ = ½, rewards 1, 2, 4 arrive with rows 1, 2, 3.

    The episode continues; terminates with row 1; is truncated with row 2; ended with row 0, which only resets.
    """
    ended = torch.zeros(4, 4, 2, dtype=torch.bool)  # [row, history, terminated or truncated]
    ended[1, 1, 0] = ended[2, 2, 1] = ended[0, 3, 0] = True
    obs = torch.arange(16.0).view(4, 4, 1)  # row t of history h: 4 t + h
    reward = torch.tensor([0.0, 1.0, 2.0, 4.0])[:, None].expand(4, 4)
    no = torch.zeros(4, 4, dtype=torch.bool)
    rows = [
        Trajectory({"state": obs[at]}, obs[at], reward[at], ended[at][..., 0], ended[at][..., 1], no[at])
        for at in (slice(0, 3), 3)
    ]
    result = module.n_step(Batch(*rows, policy_steps=0), gamma=0.5)
    expected = {
        "reward": [1 + 1 + 1, 1, 1 + 1],  # 1 + 2/2 + 4/4; the first alone; the first two
        "discount": [0.125, 0.0, 0.25],
        "weight": [1, 1, 1],
    }
    for name, values in expected.items():
        assert getattr(result, name)[:3].tolist() == values, (name, getattr(result, name))
    assert result.obs["state"][:, 0].tolist() == [0, 1, 2, 3]
    assert result.next_obs["state"][:, 0].tolist()[:3] == [12, 5, 10]
    assert result.weight[3] == 0
