"""Checks of A2C: our learner against Stable-Baselines3, and against PPO where the two algorithms are equal.

A check takes the module under test as an argument, like those of `oracle`, whose helpers it uses.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.config.build import build
from rlcore.types import Batch
from tests.golden.oracle import (
    HERE,
    aligned,
    distance,
    fixture,
    injected,
    make_learner,
    part,
    rollout_batch,
)
from tests.learning.assembly import Trainer, assemble, context

MADE: dict[str, Any] = json.loads((HERE / "a2c_fixtures.json").read_text())
UNITS: int = json.loads((HERE / "fixtures.json").read_text())["units"]
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "rmsprop_tf": {"name": "rmsprop_tf", "lr": 7e-4, "alpha": 0.99, "eps": 1e-5, "betas": None},
    "sgd": {"name": "sgd", "lr": 1e-2, "eps": None, "betas": None},
}


def make_config(module: ModuleType, setting: dict[str, Any], rollout_steps: int, **more: Any) -> Any:
    networks = {"dense_units": UNITS, "mlp_layers": 2, "dense_act": "tanh"}
    values = setting | {
        "name": "a2c",
        "total_steps": 100_000,
        "rollout_steps": rollout_steps,
        "loss_reduction": "mean",
        "encoder": {"mlp_layers": 0},
        "actor": networks | {"state_dependent_std": False},
        "critic": networks,
        "optimizer": {"eps": None, "betas": [0.9, 0.999]} | setting["optimizer"],
    }
    return build(module.Config, values | more, "algo.")


def check_update(module: ModuleType, kind: str, variant: str, batch_size: int | None = None) -> None:
    """Check weights after several updates in float64, and losses and gradient norm of the last; also in parts."""
    given, content = fixture(f"ppo_{kind}"), fixture(f"a2c_{kind}")
    setting = MADE["common"] | VARIANTS[variant]
    config = make_config(module, setting, 200, per_rank_batch_size=batch_size)
    learner = make_learner(module, config, kind, part(given, "initial/"), torch.float64)
    batch = injected(module, learner, part(given, "samples/"))
    metrics = [learner.update(batch, np.random.default_rng(0)) for _ in range(MADE["steps"])][-1]
    gap = distance(learner.agent, part(content, f"final/{variant}/"))
    assert gap < 1e-11, f"parameters differ by {gap:.1e}"
    names = {f"{name}_loss": f"Loss/{name}_loss" for name in ("policy", "value", "entropy")}
    names["grad_norm"] = "Info/grad_norm"
    for theirs, value in part(content, f"logged/{variant}/").items():
        found = float(metrics[names[theirs]])
        assert abs(found - float(value)) < 1e-11, (theirs, found, float(value))
    assert learner.updates == MADE["steps"]


def check_rollout(module: ModuleType) -> None:
    """Check the update from raw rewards, with episode ends inside the rollout and λ = 1, in float32."""
    data = fixture("ppo_rollout")
    rows, _ = aligned({name: data[name] for name in ("features", "action", "old_logprob")}, data)
    config = make_config(module, MADE["common"], len(rows["reward"]) - 1, **MADE["rollout"])
    learner = make_learner(module, config, "discrete", part(data, "initial/"), torch.float32)
    learner.update(rollout_batch(rows, data["last_obs"]), np.random.default_rng(0))
    gap = distance(learner.agent, part(fixture("a2c_rollout"), "final/"))
    assert gap < 1e-6, f"parameters differ by {gap:.1e}"  # measured 1e-7


def check_annealing(module: ModuleType) -> None:
    """Check that annealed coefficients are half their size in the middle of the budget."""
    given, setting = fixture("ppo_discrete"), MADE["common"]
    half = {"ent_coef": setting["ent_coef"] / 2, "optimizer": setting["optimizer"] | {"lr": 1.5e-3}}
    states = []
    for changes, more, policy_steps in (
        (setting, {"anneal_lr": True, "anneal_ent_coef": True}, 50_000),
        (setting | half, {}, 0),
    ):
        learner = make_learner(
            module, make_config(module, changes, 200, **more), "discrete", part(given, "initial/"), torch.float64
        )
        learner.update(injected(module, learner, part(given, "samples/"), policy_steps), np.random.default_rng(0))
        states.append(learner.agent.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def rollouts(env_id: str, **changes: Any) -> Trainer:
    """Return a trainer of A2C on environments whose episodes of at most 12 steps end inside every rollout."""
    values = {
        "name": "a2c",
        "total_steps": 10_000,
        "rollout_steps": 20,
        "gae_lambda": 1.0,
        "ent_coef": 0.01,
        "dense_units": 16,
        "optimizer": OPTIMIZERS["rmsprop_tf"],
    }
    return assemble(env_id, values | changes, num_envs=3, max_episode_steps=12)


def check_is_ppo(module: ModuleType, kind: str, optimizer: str, reduction: str, normalize: bool = False) -> None:
    """Check that PPO with one epoch of one minibatch is A2C (Huang et al. 2022, arXiv:2205.09123) in 10 updates.

    Both start with the same weights and get the same rollouts, collected by the agent of A2C.
    """
    same = {
        "optimizer": OPTIMIZERS[optimizer],
        "loss_reduction": reduction,
        "normalize_advantages": normalize,
        "max_grad_norm": 0.5,
        "vf_coef": 0.5,
    }
    training = rollouts(ENVS[kind], **same)
    assert training.learner.__class__.__module__ == module.__name__
    config = training.learner.config
    shared = ("total_steps", "rollout_steps", "gae_lambda", "ent_coef", "dense_units")
    values = {key: getattr(config, key) for key in shared} | same
    values |= {"name": "ppo", "per_rank_batch_size": 20 * 3, "update_epochs": 1}
    other, _, _ = ppo.build(context(values, training.collector.envs.spec, 3))
    other.agent.load_state_dict(training.learner.agent.state_dict())
    before = training.weights()
    resets = 0
    for _ in range(10):
        batch = Batch(*training.collector.collect(20), policy_steps=training.collector.env_steps)
        resets += int((batch.steps.terminated | batch.steps.truncated).sum())
        metrics = [learner.update(batch, np.random.default_rng(1)) for learner in (training.learner, other)]
        for name, value in metrics[0].items():
            if name != "Loss/policy_loss":  # PPO has the ratio instead of the log-probability
                torch.testing.assert_close(torch.as_tensor(metrics[1][name]), torch.as_tensor(value), msg=name)
    assert resets > 5, "hardly a row that resets"
    theirs = {name: p.detach().numpy() for name, p in other.agent.named_parameters()}
    # Measured 3e-6 of the movement, in float32.
    gap = max(np.abs(value - theirs[name]).max() for name, value in training.weights().items())
    movement = max(np.abs(value - before[name]).max() for name, value in training.weights().items())
    assert gap < 3e-5 * movement, f"parameters differ by {gap:.1e}, after moving by {movement:.1e}"
