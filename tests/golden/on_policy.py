"""Inputs of PPO, A2C and recurrent PPO from golden values: learners with given weights, samples and rollouts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlcore.data.history import SamplesWithHistory
from rlcore.functional.tree import map_leaves
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Trajectory
from tests.golden.fixtures import arrays, check_state, part, settings, tensors
from tests.learning.assembly import context

PPO = settings("ppo")
NETWORKS = {"dense_units": PPO["units"], "mlp_layers": 2, "dense_act": "tanh"}
ACTIONS = {
    "discrete": ActionSpec("Discrete", (), "int64", nvec=(5,), start=(0,)),
    "continuous": ActionSpec("Box", (3,), "float32", low=(-1.0,) * 3, high=(1.0,) * 3),
    "multi_discrete": ActionSpec("MultiDiscrete", (2,), "int64", nvec=(2, 3), start=(0, 0)),
}
PARAMETERS = {  # names of Stable-Baselines3 -> ours
    "mlp_extractor.policy_net.0": "actor.layers.0",
    "mlp_extractor.policy_net.2": "actor.layers.2",
    "action_net": "head.linear",
    "mlp_extractor.value_net.0": "critic.layers.0",
    "mlp_extractor.value_net.2": "critic.layers.2",
    "value_net": "critic.layers.4",
    "log_std": "head.log_std",
} | {
    f"lstm_actor.{kind}_{theirs}_l0": f"cell.{ours}.{kind}"
    for kind in ("weight", "bias")
    for theirs, ours in (("ih", "input_proj"), ("hh", "carry_proj"))
}


def ours(weights: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return weights, or gradients, under our names."""
    named = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        named[f"{PARAMETERS[layer]}.{kind}" if layer in PARAMETERS else PARAMETERS[name]] = torch.from_numpy(value)
    return named


def make_learner(
    module: ModuleType,
    values: dict[str, Any],
    kind: str,
    initial: dict[str, np.ndarray],
    precision: str,
    masked: bool = False,
) -> Any:
    """Return a learner with SB3's weights for one kind of action; `values` are those of its config."""
    obs, action = {"state": ArraySpec((4,), "float32")}, ACTIONS[kind]
    if masked:
        obs["mask"] = ArraySpec((sum(action.nvec),), "bool", kind="mask")
    spec = EnvSpec("Golden-v0", obs, action)
    learner: Any = module.build(context(values, spec, 1, precision=precision))[0]
    learner.agent.load_state_dict(ours(initial))
    learner.agent.encoder.forward = lambda obs, lead=1: obs["state"]  # in float64 too, which would become float32 there
    return learner


def check_parameters(learner: Any, expected: dict[str, np.ndarray], within: float) -> None:
    check_state(learner.agent, ours(expected), within)


class KnownOrder:
    """Generator whose permutations are those of SB3; rows that SB3 does not use are the last ones."""

    def __init__(self, orders: np.ndarray | list[np.ndarray]) -> None:
        self.orders = list(orders)

    def permutation(self, rows: np.ndarray) -> np.ndarray:
        order = self.orders.pop(0)
        return np.concatenate([rows[order], np.delete(rows, order)])


def injected(samples_class: Any, learner: Any, samples: dict[str, np.ndarray], policy_steps: int = 0) -> Batch:
    """Inject exactly these samples into the learner, independent of the content of the batch."""
    count, values = len(samples["advantage"]), tensors(samples)
    masks = {name: values[name] for name in ("mask",) if name in values}
    obs: Any = {"state": values["features"]} | masks
    obs = SamplesWithHistory(obs, {}) if hasattr(samples_class, "at") else obs
    values |= {"obs": obs, "weight": torch.ones(count, dtype=torch.float64)}
    found = samples_class(**{name: values[name] for name in samples_class._fields})
    learner.samples = lambda batch: found
    blank = torch.zeros(count, 1)
    rows = {"state": torch.zeros(count, 1, 4)} | {name: mask.unsqueeze(1) for name, mask in masks.items()}
    steps = Trajectory(rows, blank, blank, blank.bool(), blank.bool(), blank.bool())
    return Batch(steps, map_leaves(lambda rows: rows[-1], steps), policy_steps)


def check_annealing(
    make: Callable[..., Any], samples_class: Any, annealed: dict[str, Any], halves: dict[str, Any], rng: Any
) -> None:
    """Check that annealed coefficients are half their size in the middle of the budget.

    Args:
        make: return a learner for discrete actions whose config has the given changes.
        samples_class: class of its samples.
        annealed: changes that anneal coefficients.
        halves: changes that halve them.
        rng: return the generator of an update.
    """
    states = []
    for changes, policy_steps in ((annealed, 50_000), (halves, 0)):
        learner = make(**changes)
        samples = part(arrays("ppo_discrete"), "samples/")
        learner.update(injected(samples_class, learner, samples, policy_steps), rng())
        states.append(learner.agent.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def aligned(columns: dict[str, np.ndarray], data: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return transitions [T, B] of SB3 in our alignment.

    SB3 has one row per transition. We have one row per observation, so every episode that ends inside the
    rollout gets one more row: its last observation, which is followed by the reset.

    Args:
        columns: name -> [T, B, ...], to be stored in the row in which the transition began.
        data: reward, terminated, truncated of the transitions and final_value of last observations.

    Returns:
        (name -> [T+1+K, B, ...] with K ends in every environment, the row [T, B] of each transition).
    """
    length, envs = data["reward"].shape
    done = data["terminated"] | data["truncated"]
    ends = int(done[:-1, 0].sum())
    assert (done[:-1].sum(0) == ends).all()
    shape = (length + ends + 1, envs)
    rows = {name: np.zeros((*shape, *value.shape[2:]), value.dtype) for name, value in columns.items()}
    rows |= {"reward": np.zeros(shape), "terminated": np.zeros(shape, bool), "truncated": np.zeros(shape, bool)}
    rows |= {"is_first": np.zeros(shape, bool), "value": np.zeros(shape)}
    place = np.zeros((length, envs), np.int64)
    for env in range(envs):
        row = 0
        rows["is_first"][0, env] = True
        for t in range(length):
            place[t, env] = row
            for name, value in columns.items():
                rows[name][row, env] = value[t, env]
            rows["value"][row, env] = data["value"][t, env]
            row += 1
            for name in ("reward", "terminated", "truncated"):
                rows[name][row, env] = data[name][t, env]
            if done[t, env] and t < length - 1:
                rows["value"][row, env] = data["final_value"][t, env]  # the value of the true last observation
                row += 1
                rows["is_first"][row, env] = True
    return rows, place


def rollout_batch(rows: dict[str, np.ndarray], last_obs: np.ndarray) -> Batch:
    """Return a batch of aligned rows; missing columns `features`, `action` and `logprob` are zero."""
    shape = rows["reward"].shape
    features = rows.get("features", np.zeros((*shape, 4), np.float32))
    action = torch.from_numpy(rows.get("action", np.zeros((*shape, 1), np.int64)))
    extras = {"value": rows["value"], "logprob": rows.get("old_logprob", np.zeros(shape))}
    flags = ("terminated", "truncated", "is_first")
    reward = torch.from_numpy(rows["reward"]).float()
    held = [torch.from_numpy(rows[name]) for name in flags]
    steps = Trajectory(
        {"state": torch.from_numpy(features[:-1])},
        action[:-1],
        reward[:-1],
        *(value[:-1] for value in held),
        {name: torch.from_numpy(value[:-1]).float() for name, value in extras.items()},
    )
    last = Trajectory({"state": torch.from_numpy(last_obs)}, action[-1], reward[-1], *(value[-1] for value in held))
    return Batch(steps, last, 0)
