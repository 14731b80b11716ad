"""Our learner on the inputs of the fixtures, and the checks against the results of Stable-Baselines3.

A check takes the module under test as an argument, so that the same check runs on the real code and on its mutants.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.data.history import SamplesWithHistory
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks
from rlcore.types import Batch, Context, Trajectory

HERE = Path(__file__).parent
MADE: dict[str, Any] = json.loads((HERE / "fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
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
}


@functools.cache
def fixture(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{name}.npz") as content:
        return dict(content)


@functools.cache
def fabric(precision: str) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision=precision)  # pyright: ignore[reportArgumentType]


def part(content: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in content.items() if k.startswith(prefix)}


def ours(weights: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return weights under our names."""
    named = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        named[f"{PARAMETERS[layer]}.{kind}" if layer in PARAMETERS else PARAMETERS[name]] = torch.from_numpy(value)
    return named


class KnownOrder:
    """Generator whose permutations are those of the oracle."""

    def __init__(self, orders: np.ndarray) -> None:
        self.orders = list(orders)

    def permutation(self, rows: np.ndarray) -> np.ndarray:
        return rows[self.orders.pop(0)]


def make_config(module: ModuleType, setting: dict[str, Any], rollout_steps: int, **more: Any) -> Any:
    networks = {"dense_units": MADE["units"], "mlp_layers": 2, "dense_act": "tanh"}
    same = ("clip_coef", "vf_coef", "ent_coef", "max_grad_norm", "normalize_advantages")
    values = {key: setting[key] for key in same} | {
        "total_steps": 100_000,
        "rollout_steps": rollout_steps,
        "per_rank_batch_size": setting["batch_size"],
        "update_epochs": MADE["epochs"],
        "target_kl": setting["target_kl"],
        "clip_vloss": setting["clip_vloss"],
        "dual_clip": setting["dual_clip"],
        "accumulate_minibatches": setting["accumulate"],
        "loss_reduction": setting["reduction"],
        "encoder": {"mlp_layers": 0},
        "actor": networks | {"state_dependent_std": False},
        "critic": networks,
        "optimizer": {"name": "adam", "lr": setting["lr"], "eps": setting["eps"]},
    }
    return build(module.Config, values | {"name": "ppo"} | more, "algo.")


def make_learner(module: ModuleType, config: Any, kind: str, initial: dict[str, np.ndarray], dtype: torch.dtype) -> Any:
    spec = EnvSpec("Golden-v0", {"state": ArraySpec((4,), "float32")}, ACTIONS[kind])
    own_fabric = fabric("64-true" if dtype == torch.float64 else "32-true")
    run = RunConfig(algo=config, env=EnvConfig(id=spec.id))
    learner, _, _ = module.build(Context(run, spec, own_fabric, FabricRanks(own_fabric), num_envs=1))
    learner.agent.load_state_dict(ours(initial))
    learner.agent.encoder.forward = lambda obs, lead=1: obs["state"]  # in float64 too, which would become float32 there
    return learner


def injected(module: ModuleType, learner: Any, samples: dict[str, np.ndarray], policy_steps: int = 0) -> Batch:
    """Inject exactly these samples into the learner, independent of the content of the batch."""
    count = len(samples["advantage"])
    tensors = {name: torch.from_numpy(value) for name, value in samples.items()}
    obs: Any = {"state": tensors["features"]}
    samples_class = module.PPOSamples if hasattr(module, "PPOSamples") else module.A2CSamples
    obs = SamplesWithHistory(obs, {}) if hasattr(samples_class, "at") else obs
    tensors |= {"obs": obs, "weight": torch.ones(count, dtype=torch.float64)}
    found = samples_class(**{name: tensors[name] for name in samples_class._fields})
    learner.samples = lambda batch: found
    blank = torch.zeros(count, 1)
    steps = Trajectory({"state": torch.zeros(count, 1, 4)}, blank, blank, blank.bool(), blank.bool(), blank.bool())
    return Batch(steps, steps, policy_steps)


def distance(agent: torch.nn.Module, expected: dict[str, np.ndarray]) -> float:
    """Return the largest absolute difference of any parameter."""
    state = agent.state_dict()
    named = ours(expected)
    assert named.keys() == state.keys(), named.keys() ^ state.keys()
    return max((state[name].double() - value).abs().max().item() for name, value in named.items())


def check_update(module: ModuleType, kind: str, variant: str) -> None:
    """Check weights, logged losses and gradient norms of one update in float64."""
    content, setting = fixture(f"ppo_{kind}"), MADE["common"] | VARIANTS[variant]
    learner = make_learner(module, make_config(module, setting, 200), kind, part(content, "initial/"), torch.float64)
    batch = injected(module, learner, part(content, "samples/"))
    metrics = learner.update(batch, KnownOrder(content["orders"]))
    gap = distance(learner.agent, part(content, f"final/{variant}/"))
    assert gap < 1e-11, f"parameters differ by {gap:.1e}"
    logged = part(content, f"logged/{variant}/")
    names = {
        "policy_loss": "Loss/policy_loss",
        "value_loss": "Loss/value_loss",
        "entropy_loss": "Loss/entropy_loss",
        "clip_fraction": "Info/clip_fraction",
        "grad_norm": "Info/grad_norm",
    }
    for theirs, name in names.items():
        tolerance = 1e-7 if theirs == "clip_fraction" else 1e-10  # the oracle counts clipped samples in float32
        gap = abs(float(metrics[name]) - float(logged[theirs]))
        assert gap < tolerance, (name, float(metrics[name]), float(logged[theirs]))
    assert learner.updates == logged["steps"]


def aligned(columns: dict[str, np.ndarray], data: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return transitions [T, B] of the oracle in our alignment.

    The oracle has one row per transition. We have one row per observation, so every episode that ends inside the
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


class KnownValue(torch.nn.Module):
    """Agent that only knows the value of the observation after the rollout."""

    def __init__(self, last_value: np.ndarray) -> None:
        super().__init__()
        self.last_value = torch.from_numpy(last_value).float()
        self.keys, self.history = ("state",), {}

    def forward(self, obs: dict[str, Tensor]) -> tuple[None, Tensor]:
        return None, self.last_value


def check_advantages(module: ModuleType, method: str = "loop") -> None:
    """Check advantages and returns over ended, truncated and open episodes, for three pairs (γ, λ)."""
    data = fixture("gae")
    rows, place = aligned({}, data)
    batch = rollout_batch(rows, np.zeros((4, 4), np.float32))
    for i, (gamma, gae_lambda) in enumerate(data["pairs"]):
        more = {"gamma": float(gamma), "gae_lambda": float(gae_lambda), "gae_method": method}
        config = make_config(module, MADE["common"], len(rows["reward"]) - 1, **more)
        initial = part(fixture("ppo_discrete"), "initial/")
        learner = make_learner(module, config, "discrete", initial, torch.float32)
        learner.agent = KnownValue(data["last_value"])
        samples = learner.samples(batch)
        shape = batch.steps.reward.shape
        found = {k: getattr(samples, k).reshape(shape).numpy() for k in ("advantage", "returns", "weight")}
        taken = {name: np.take_along_axis(value, place, 0) for name, value in found.items()}
        expected = data[f"advantage/{i}"]
        # Values are around 5, float32.
        np.testing.assert_allclose(taken["advantage"], expected, rtol=0, atol=5e-6)
        np.testing.assert_allclose(taken["returns"], expected + data["value"], rtol=0, atol=5e-6)
        # Every transition counts once, every reset row not at all.
        assert (taken["weight"] == 1).all() and found["weight"].sum() == place.size


def check_rollout(module: ModuleType) -> None:
    """Check the update from raw rewards, with episode ends inside the rollout, in float32."""
    data = fixture("ppo_rollout")
    envs = data["reward"].shape[1]
    columns = {name: data[name] for name in ("features", "action", "old_logprob")}
    rows, place = aligned(columns, data)
    setting = MADE["common"] | {"batch_size": MADE["rollout"]["batch_size"]}
    more = {key: MADE["rollout"][key] for key in ("gamma", "gae_lambda")}
    config = make_config(module, setting, len(rows["reward"]) - 1, **more)
    learner = make_learner(module, config, "discrete", part(data, "initial/"), torch.float32)
    # The oracle numbers its samples t·B + b; ours are numbered by their position among the rows that count.
    numbers = np.argsort(np.argsort((place * envs + np.arange(envs)).reshape(-1)))
    learner.update(rollout_batch(rows, data["last_obs"]), KnownOrder([numbers[order] for order in data["orders"]]))
    gap = distance(learner.agent, part(data, "final/"))
    # Measured 3e-7; the weakest mutant that only this check detects moves parameters by more than 1e-4.
    assert gap < 3e-6, f"parameters differ by {gap:.1e}"


def check_annealing(module: ModuleType) -> None:
    """Check that annealed coefficients are half their size in the middle of the budget."""
    content = fixture("ppo_discrete")
    setting = MADE["common"]
    annealed = {"anneal_lr": True, "anneal_clip_coef": True, "anneal_ent_coef": True}
    halves = {"clip_coef": setting["clip_coef"] / 2, "ent_coef": setting["ent_coef"] / 2, "lr": setting["lr"] / 2}
    states = []
    for changes, more, policy_steps in ((setting, annealed, 50_000), (setting | halves, {}, 0)):
        config = make_config(module, changes, 200, **more)
        learner = make_learner(module, config, "discrete", part(content, "initial/"), torch.float64)
        batch = injected(module, learner, part(content, "samples/"), policy_steps)
        learner.update(batch, KnownOrder(content["orders"]))
        states.append(learner.agent.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def check_weight_decay(module: ModuleType) -> None:
    """Check that weight decay of "adam" is an L2 penalty on the loss, which passes through Adam's moments."""
    content, setting = fixture("ppo_discrete"), MADE["common"] | VARIANTS["raw_advantages"]
    penalty, states = 0.1, []
    for decay in (penalty, 0.0):
        optimizer = {"name": "adam", "lr": setting["lr"], "eps": setting["eps"], "weight_decay": decay}
        config = make_config(module, setting, 200, optimizer=optimizer)
        learner = make_learner(module, config, "discrete", part(content, "initial/"), torch.float64)
        batch = injected(module, learner, part(content, "samples/"))
        if not decay:
            plain = learner.loss

            def penalised(
                *arguments: Any, plain: Any = plain, agent: Any = learner.agent
            ) -> tuple[Tensor, Tensor, Any]:
                loss, weight, means = plain(*arguments)
                return loss + weight * penalty / 2 * sum(p.square().sum() for p in agent.parameters()), weight, means

            learner.optimizer.loss = penalised
        learner.update(batch, KnownOrder(content["orders"]))
        states.append(learner.agent.state_dict())
    for name, value in states[0].items():
        np.testing.assert_allclose(value.numpy(), states[1][name].numpy(), rtol=0, atol=1e-12)
