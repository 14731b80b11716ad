"""Our recurrent learner on the rollouts of the fixtures, and the checks against the results of sb3-contrib.

A check takes the module under test as an argument, so that the same check runs on the real code and on its mutants.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rlcore.data.rollout import split
from rlcore.functional.stats import standardize
from rlcore.types import Batch, Trajectory
from tests.golden import oracle
from tests.golden.oracle import HERE, KnownOrder, distance, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "recurrent_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
oracle.PARAMETERS |= {
    f"lstm_actor.{kind}_{theirs}_l0": f"cell.{ours}.{kind}"
    for kind in ("weight", "bias")
    for theirs, ours in (("ih", "input_proj"), ("hh", "carry_proj"))
}


def make_learner(module: ModuleType, kind: str, variant: str, dtype: torch.dtype) -> Any:
    setting = oracle.MADE["common"] | VARIANTS[variant]
    networks = {"dense_units": oracle.MADE["units"], "mlp_layers": 2, "dense_act": "tanh", "layer_norm": False}
    config = oracle.make_config(
        module,
        setting,
        len(fixture(f"recurrent_{kind}")["rows/reward"]) - 1,
        name="ppo_recurrent",
        gamma=MADE["gamma"],
        gae_lambda=MADE["gae_lambda"],
        per_rank_sequence_length=MADE["sequence_lengths"][setting["cuts"]],
        per_rank_num_batches=MADE["minibatches"],
        rnn={"lstm": {"hidden_size": oracle.MADE["units"]}},
        actor=networks | {"state_dependent_std": False},
        critic=networks,
    )
    return oracle.make_learner(module, config, kind, part(fixture(f"recurrent_{kind}"), "initial/"), dtype)


def make_batch(kind: str, dtype: torch.dtype) -> Batch:
    """Return the rollout with the carry before each row, the action before the first row, and the arrival."""
    rows = {name: torch.from_numpy(value) for name, value in part(fixture(f"recurrent_{kind}"), "rows/").items()}
    rows = {name: value.to(dtype) if value.is_floating_point() else value for name, value in rows.items()}
    flags = ("action", "reward", "terminated", "truncated", "is_first")
    carry = {name: rows[name][-1] for name in ("h", "c")}
    extras = {name: rows[name][:-1] for name in carry}
    extras |= {"value": rows["old_value"][:-1], "logprob": rows["old_logprob"][:-1]}
    nothing = rows["is_first"][:0]
    past = {"action": rows["action_before"].unsqueeze(0), "is_first": nothing}
    steps = Trajectory({"state": rows["obs"][:-1]}, *(rows[name][:-1] for name in flags), extras, past=past)
    return Batch(steps, Trajectory({"state": rows["obs"][-1]}, *(rows[name][-1] for name in flags), carry=carry), 0)


def with_oracle_advantages(learner: Any, kind: str, batch: Batch) -> Any:
    """Return the samples of a batch with the oracle's advantages and returns in float64 instead of our own."""
    rows = part(fixture(f"recurrent_{kind}"), "rows/")
    taken = {name: torch.from_numpy(rows[name][:-1]).flatten() for name in ("advantage", "returns")}
    samples = type(learner).samples(learner, batch)
    return samples._replace(weight=samples.weight.double(), **taken)


def orders(kind: str, variant: str) -> KnownOrder:
    return KnownOrder(fixture(f"recurrent_{kind}")[f"orders/{VARIANTS[variant]['cuts']}"])


def check_gradients(module: ModuleType, kind: str) -> None:
    """Check losses and gradients of the minibatches of one epoch in float64."""
    content, learner = fixture(f"recurrent_{kind}"), make_learner(module, kind, "base", torch.float64)
    batch = make_batch(kind, torch.float64)
    samples = with_oracle_advantages(learner, kind, batch)
    rows, weight = learner.draw(samples.weight.view(batch.steps.reward.shape), orders(kind, "base"))
    advantage = standardize(samples.advantage[rows[0]], weight[0])
    parameters, coefs = dict(learner.agent.named_parameters()), {"clip_coef": 0.2, "ent_coef": 0.05}
    minibatches = [minibatch for (minibatch,) in split(samples.at(rows[0], advantage, weight[0]), 1)]
    assert len(minibatches) == MADE["minibatches"]
    for k, minibatch in enumerate(minibatches):
        total, count, means = learner.loss(minibatch, coefs)
        for name in ("policy_loss", "value_loss", "entropy_loss"):
            gap = abs(float(means[f"Loss/{name}"]) - float(content[f"loss/{k}/{name}"]))
            assert gap < 1e-10, (k, name, gap)
        found = torch.autograd.grad(total / count, [*parameters.values()])
        expected: dict[str, Tensor] = oracle.ours(part(content, f"gradient/{k}/"))
        assert expected.keys() == parameters.keys()
        for name, gradient in zip(parameters, found, strict=True):
            # Measured 9e-16; a mutant misses a loss by 4e-4 or more, or a gradient by a third.
            gap = (gradient - expected[name]).abs().max().item()
            assert gap < 1e-11, f"minibatch {k}: gradients of {name} differ by {gap:.1e}"


def check_update(module: ModuleType, kind: str, variant: str) -> None:
    """Check weights, logged losses and gradient norms of one update in float64."""
    content, learner = fixture(f"recurrent_{kind}"), make_learner(module, kind, variant, torch.float64)
    learner.samples = lambda batch: with_oracle_advantages(learner, kind, batch)
    metrics = learner.update(make_batch(kind, torch.float64), orders(kind, variant))
    gap = distance(learner.agent, part(content, f"final/{variant}/"))
    assert gap < 1e-11, f"parameters differ by {gap:.1e}"
    logged = part(content, f"logged/{variant}/")
    assert learner.updates == logged["steps"]
    names = {f"{term}_loss": f"Loss/{term}_loss" for term in ("policy", "value", "entropy")}
    for theirs, name in (names | {"grad_norm": "Info/grad_norm"}).items():
        gap = abs(float(metrics[name]) - float(logged[theirs]))
        assert gap < 1e-10, (name, gap)


def check_rollout(module: ModuleType, kind: str) -> None:
    """Check the update from raw rewards in float32; the value after the rollout uses the carry after it."""
    content, learner = fixture(f"recurrent_{kind}"), make_learner(module, kind, "base", torch.float32)
    learner.update(make_batch(kind, torch.float32), orders(kind, "base"))
    gap = distance(learner.agent, part(content, "final/base/"))
    # Measured 3e-7; the weakest mutant that only this check detects moves parameters by more than 1e-4.
    assert gap < 3e-6, f"parameters differ by {gap:.1e}"
