"""Write the golden values of PPO: results of Stable-Baselines3 for inputs that use every branch of the loss.

    ppo_<actions>.npz   weights before and after PPO.train() on an injected buffer, minibatch order given, in float64
    ppo_rollout.npz     the same from raw rewards, so that the advantages are those of Stable-Baselines3 too
    gae.npz             RolloutBuffer.compute_returns_and_advantage over terminated, truncated and open episodes

Stable-Baselines3 has no value clipping by the maximum of both losses, no dual clip, and no summed gradients or losses.
The golden values of these options are those of `closed_form_update`, which must agree with PPO.train() to 1e-13 before
anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer

from tests.golden.fixtures import tensors
from tests.golden.makers.files import versions, write_arrays, write_settings
from tests.golden.makers.sb3 import Blank, compute_in_float64, without_log

OBS, UNITS, SAMPLES, EPOCHS = 4, 8, 200, 3
ACTIONS = {
    "discrete": spaces.Discrete(5),
    "continuous": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
}
COMMON = {
    "clip_coef": 0.2,
    "vf_coef": 0.7,
    "ent_coef": 0.05,
    "max_grad_norm": 0.5,
    "normalize_advantages": True,
    "lr": 3e-3,
    "eps": 1e-5,
    "batch_size": 64,  # 200 samples: the fourth minibatch of an epoch has 8
    "target_kl": None,
    "clip_vloss": False,
    "dual_clip": None,
    "accumulate": 1,
    "reduction": "mean",
}
VARIANTS = {
    "base": {},
    "raw_advantages": {"normalize_advantages": False, "max_grad_norm": 0.0},
    "target_kl": {"target_kl": 0.05},
    "one_sample_minibatch": {"batch_size": 199},  # a minibatch of one sample has no std: its advantage is unchanged
    "clip_vloss": {"clip_vloss": True},
    "dual_clip": {"dual_clip": 1.5, "normalize_advantages": False},
    "accumulate": {"accumulate": 2},
    "sum": {"reduction": "sum", "max_grad_norm": 0.0},
}
OBSERVATIONS = spaces.Box(-10.0, 10.0, (OBS,), np.float32)
LOGGED = {
    "policy_loss": "policy_gradient_loss",
    **{name: name for name in ("value_loss", "entropy_loss", "clip_fraction")},
}
ONLY_CLOSED_FORM = ("clip_vloss", "dual_clip", "accumulate", "sum")


class Order:
    """Replacement of np.random.permutation that returns given orders."""

    def __init__(self, orders: np.ndarray) -> None:
        self.orders = list(orders)

    def __call__(self, count: int) -> np.ndarray:
        order = self.orders.pop(0)
        assert len(order) == count
        return order


def make_model(
    action_space: spaces.Space,
    setting: dict,
    weights: dict | None = None,
    samples: int = SAMPLES,
    algorithm: type[Any] = PPO,
) -> Any:
    """Return SB3's PPO, or a variant of it, in float64 with separate tanh networks for policy and value."""
    model = algorithm(
        "MlpPolicy",
        Blank(OBSERVATIONS, action_space),
        n_steps=samples,
        batch_size=setting["batch_size"],
        n_epochs=EPOCHS,
        learning_rate=setting["lr"],
        clip_range=setting["clip_coef"],
        ent_coef=setting["ent_coef"],
        vf_coef=setting["vf_coef"],
        max_grad_norm=setting["max_grad_norm"] or float("inf"),
        normalize_advantage=setting["normalize_advantages"],
        target_kl=setting["target_kl"],
        policy_kwargs={"net_arch": [UNITS, UNITS], "optimizer_kwargs": {"eps": setting["eps"]}},
        seed=7,
        device="cpu",
    )
    model.policy.double()
    if weights is None:  # away from the small initial policy head, with which all actions are alike
        noise = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)
    else:
        model.policy.load_state_dict(tensors(weights))
    return without_log(model)


def weights_of(model: PPO) -> dict[str, np.ndarray]:
    """Return the parameters by SB3's names."""
    return {name: value.detach().numpy().copy() for name, value in model.policy.state_dict().items()}


def make_samples(model: PPO, action_space: spaces.Space) -> dict[str, np.ndarray]:
    """Return inputs on both sides of every clip, with advantages of both signs."""
    rng = np.random.default_rng(11)
    action_space.seed(5)
    obs = rng.standard_normal((SAMPLES, OBS)).astype(np.float32).astype(np.float64)
    action = np.stack([np.atleast_1d(action_space.sample()) for _ in range(SAMPLES)])
    with torch.no_grad():
        given = torch.from_numpy(action).flatten() if action.shape[1] == 1 else torch.from_numpy(action)
        value, logprob, _ = model.policy.evaluate_actions(torch.from_numpy(obs), given)
    old_value = value.flatten().numpy() + rng.normal(0, 0.4, SAMPLES)
    advantage = rng.normal(0.3, 1.5, SAMPLES)
    samples = {
        "features": obs,
        "action": action,
        "old_logprob": logprob.numpy() + rng.normal(0, 0.35, SAMPLES),
        "old_value": old_value,
        "advantage": advantage,
        "returns": old_value + advantage,
    }
    ratio, gap = np.exp(logprob.numpy() - samples["old_logprob"]), value.flatten().numpy() - old_value
    for outside in (ratio > 1.5, ratio < 0.8):
        for side in (advantage > 0, advantage < 0):
            assert (outside & side).sum() >= 8, "a branch of the surrogate is hardly used"
    assert (gap > 0.2).sum() > 20 and (gap < -0.2).sum() > 20, "value clipping is hardly used"
    return samples


def fill(model: PPO, samples: dict[str, np.ndarray]) -> None:
    """Put flat samples into SB3's buffer, as after its own flattening."""
    buffer = model.rollout_buffer
    names = {"observations": "features", "actions": "action", "values": "old_value", "log_probs": "old_logprob"}
    for theirs, ours in {**names, "advantages": "advantage", "returns": "returns"}.items():
        array = samples[ours]
        setattr(buffer, theirs, array if array.ndim == 2 else array[:, None])
    buffer.full = buffer.generator_ready = True


def call_train(model: Any, orders: np.ndarray, names: Mapping[str, str]) -> tuple[dict[str, np.ndarray], list[float]]:
    """Run SB3's train() with a given minibatch order.

    Args:
        model: PPO or A2C.
        orders: of each epoch.
        names: our name -> SB3's name, of the logged values.

    Returns:
        (the logged values, the gradient norm of each step).
    """
    norms: list[float] = []
    clip, permutation = torch.nn.utils.clip_grad_norm_, np.random.permutation

    def record_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = clip(*args, **kwargs)
        norms.append(float(norm))
        return norm

    torch.nn.utils.clip_grad_norm_, np.random.permutation = record_norm, Order(orders)
    try:
        model.train()
    finally:
        torch.nn.utils.clip_grad_norm_, np.random.permutation = clip, permutation
    logged = model.logger.name_to_value
    return {name: np.float64(logged[f"train/{theirs}"]) for name, theirs in names.items()}, norms


def train(model: Any, orders: np.ndarray) -> dict[str, np.ndarray]:
    """Run SB3's PPO.train(); return its logged values, the mean gradient norm, and the number of steps."""
    logged, norms = call_train(model, orders, LOGGED)
    return logged | {"grad_norm": np.float64(np.mean(norms)), "steps": np.int64(len(norms))}


def closed_form_update(model: PPO, samples: dict, orders: np.ndarray, setting: dict) -> dict[str, np.ndarray]:
    """Update the policy of the model by the formulas of PPO, with the options that SB3 lacks."""
    data = tensors(samples)
    parameters = list(model.policy.parameters())
    optimizer = torch.optim.Adam(parameters, lr=setting["lr"], eps=setting["eps"])
    logged, norms = [], []
    for order in orders:
        pieces = [order[i : i + setting["batch_size"]] for i in range(0, len(order), setting["batch_size"])]
        for first in range(0, len(pieces), setting["accumulate"]):
            group = pieces[first : first + setting["accumulate"]]
            optimizer.zero_grad()
            for piece in group:
                total, terms = _objective(model, {name: value[piece] for name, value in data.items()}, setting)
                logged.append(terms)
                (total if setting["reduction"] == "sum" else total / sum(map(len, group))).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, setting["max_grad_norm"] or float("inf"))))
            optimizer.step()
    names = ("policy_loss", "value_loss", "entropy_loss", "clip_fraction")
    means = dict(zip(names, np.mean(logged, 0), strict=True))
    return means | {"grad_norm": np.float64(np.mean(norms)), "steps": np.int64(len(norms))}


def _objective(model: PPO, part: dict[str, torch.Tensor], setting: dict) -> tuple[torch.Tensor, list[float]]:
    """Return the sum of the objective over a minibatch, and the means of its terms."""
    eps, advantage = setting["clip_coef"], part["advantage"]
    action = part["action"].flatten() if part["action"].shape[1] == 1 else part["action"]
    value, logprob, entropy = model.policy.evaluate_actions(part["features"], action)
    value = value.flatten()
    if setting["normalize_advantages"] and len(advantage) > 1:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = torch.exp(logprob - part["old_logprob"])
    # Case by case instead of by minimum: the clipped branch applies where moving further would still look better.
    bound = torch.where(advantage > 0, torch.full_like(ratio, 1 + eps), torch.full_like(ratio, 1 - eps))
    over = torch.where(advantage > 0, ratio > bound, ratio < bound)
    surrogate = torch.where(over, bound, ratio) * advantage
    if setting["dual_clip"] is not None:
        worst = setting["dual_clip"] * advantage
        surrogate = torch.where((advantage < 0) & (surrogate < worst), worst, surrogate)
    value_error = (value - part["returns"]) ** 2
    if setting["clip_vloss"]:
        clipped = torch.minimum(torch.maximum(value, part["old_value"] - eps), part["old_value"] + eps)
        value_error = torch.maximum(value_error, (clipped - part["returns"]) ** 2)
    total = (-surrogate + setting["vf_coef"] * value_error - setting["ent_coef"] * entropy).sum()
    clipped_share = ((ratio - 1).abs() > eps).double()
    return total, [t.mean().item() for t in (-surrogate, value_error, -entropy, clipped_share)]


def update_fixture(name: str) -> None:
    """Write weights before and after the update of every variant, for one kind of action."""
    space = ACTIONS[name]
    initial = weights_of(make_model(space, COMMON))
    samples = make_samples(make_model(space, COMMON, initial), space)
    rng = np.random.default_rng(17)
    orders = np.stack([rng.permutation(SAMPLES) for _ in range(EPOCHS)])
    content: dict[str, np.ndarray] = {f"initial/{k}": v for k, v in initial.items()}
    content |= {f"samples/{k}": v for k, v in samples.items()} | {"orders": orders}
    for variant, changes in VARIANTS.items():
        setting = COMMON | changes
        model = make_model(space, setting, initial)
        if variant in ONLY_CLOSED_FORM:
            logged = closed_form_update(model, samples, orders, setting)
        else:
            fill(model, samples)
            logged = train(model, orders)
            if setting["target_kl"] is None:
                again = make_model(space, setting, initial)
                closed_form_update(again, samples, orders, setting)
                gap = max(np.abs(v - weights_of(again)[k]).max() for k, v in weights_of(model).items())
                assert gap < 1e-13, (name, variant, gap)
        if setting["max_grad_norm"]:
            assert logged["grad_norm"] > setting["max_grad_norm"], "the gradient clip is not active"
        if setting["target_kl"] is not None:
            assert 0 < logged["steps"] < EPOCHS * 4, ("the KL stop is not active", logged["steps"])
        content |= {f"final/{variant}/{k}": v for k, v in weights_of(model).items()}
        content |= {f"logged/{variant}/{k}": np.asarray(v) for k, v in logged.items()}
    write_arrays(f"ppo_{name}", content)


def episodes(rng: np.random.Generator, length: int, envs: int) -> dict[str, np.ndarray]:
    """Return transitions [T, B] without reset rows: two ends per environment, both kinds of end at the last step."""
    terminated, truncated = np.zeros((2, length, envs), bool)
    for env in range(envs):
        first, second = rng.choice(np.arange(1, length - 2), 2, replace=False)
        (terminated if env % 2 else truncated)[first, env] = True
        (truncated if env % 2 else terminated)[second, env] = True
    terminated[-1, 0] = truncated[-1, 1] = True
    return {
        "reward": rng.normal(0.5, 1.0, (length, envs)),
        "value": rng.normal(0, 2.0, (length, envs)),
        "final_value": rng.normal(0, 2.0, (length, envs)),  # of the last observation, where an episode ended inside
        "terminated": terminated,
        "truncated": truncated,
    }


def advantages(data: dict[str, np.ndarray], last_value: np.ndarray, gamma: float, gae_lambda: float) -> RolloutBuffer:
    """Return SB3's buffer after compute_returns_and_advantage in float64, with its truncation: r += γ V(last obs)."""
    length, envs = data["reward"].shape
    space = spaces.Box(-1, 1, (OBS,), np.float32)
    buffer = RolloutBuffer(length, space, spaces.Discrete(5), "cpu", gae_lambda, gamma, envs)
    done = data["terminated"] | data["truncated"]
    final = data["final_value"].copy()
    final[-1] = last_value
    buffer.rewards = data["reward"] + gamma * final * (data["truncated"] & ~data["terminated"])
    buffer.values = data["value"]
    buffer.advantages = np.zeros((length, envs))
    buffer.episode_starts = np.concatenate([np.ones((1, envs)), done[:-1]])
    buffer.compute_returns_and_advantage(torch.from_numpy(last_value), done[-1])
    return buffer


def fill_rollout(
    model: Any, data: dict[str, np.ndarray], last_value: np.ndarray, gamma: float, gae_lambda: float
) -> None:
    """Put transitions [T, B] with SB3's advantages into its buffer."""
    buffer = advantages(data, last_value, gamma, gae_lambda)
    rows = {name: data[name] for name in ("features", "action", "old_logprob")} | {"old_value": data["value"]}
    rows |= {"advantage": buffer.advantages, "returns": buffer.returns}
    kinds = {"action": np.int64}
    fill(model, {k: v.reshape(-1, *v.shape[2:]).astype(kinds.get(k, np.float64)) for k, v in rows.items()})


def gae_fixture() -> None:
    """Write advantages for several (γ, λ)."""
    rng = np.random.default_rng(23)
    data = episodes(rng, 30, 4)
    last_value = rng.normal(0, 2.0, 4)
    content = data | {"last_value": last_value}
    pairs = np.array([[0.99, 0.95], [0.9, 0.0], [0.97, 1.0]])
    content["pairs"] = pairs
    for i, (gamma, gae_lambda) in enumerate(pairs):
        content[f"advantage/{i}"] = advantages(data, last_value, gamma, gae_lambda).advantages
    write_arrays("gae", content)


def rollout_fixture() -> None:
    """Write advantages and results of SB3's PPO.train() from raw rewards on one rollout with episode ends inside."""
    space, length, envs = ACTIONS["discrete"], 40, 3
    setting = COMMON | {"batch_size": 32}
    rng = np.random.default_rng(29)
    data = episodes(rng, length, envs)
    initial = weights_of(make_model(space, setting))
    model = make_model(space, setting, initial, length * envs)
    shape = (length, envs)
    features = rng.standard_normal((*shape, OBS)).astype(np.float32)
    action = rng.integers(0, 5, (*shape, 1))
    last_obs = rng.standard_normal((envs, OBS)).astype(np.float32)
    with torch.no_grad():
        flat = torch.from_numpy(features).double().flatten(0, 1)
        _, logprob, _ = model.policy.evaluate_actions(flat, torch.from_numpy(action).flatten())
        last_value = model.policy.predict_values(torch.from_numpy(last_obs).double()).flatten().numpy()
    old_logprob = logprob.numpy().reshape(shape) + rng.normal(0, 0.35, shape)
    rows = data | {"features": features, "action": action, "old_logprob": old_logprob}
    fill_rollout(model, rows, last_value, 0.98, 0.9)
    orders = np.stack([rng.permutation(length * envs) for _ in range(EPOCHS)])
    train(model, orders)
    content = data | {f"initial/{k}": v for k, v in initial.items()}
    content |= {f"final/{k}": v for k, v in weights_of(model).items()}
    content |= {name: rows[name] for name in ("features", "action", "old_logprob")}
    content |= {"last_obs": last_obs, "orders": orders}
    write_arrays("ppo_rollout", content)


def main() -> None:
    """Write every file and the settings."""
    compute_in_float64()
    for name in ACTIONS:
        update_fixture(name)
    gae_fixture()
    rollout_fixture()
    description = versions("stable_baselines3", "torch", "numpy", "gymnasium", "python") | {
        "common": COMMON,
        "variants": VARIANTS,
        "epochs": EPOCHS,
        "units": UNITS,
        "rollout": {"batch_size": 32, "gamma": 0.98, "gae_lambda": 0.9},
    }
    write_settings("ppo", description)


if __name__ == "__main__":
    main()
