"""Write the golden values of A2C: results of Stable-Baselines3's A2C.train() for the inputs of PPO's fixtures.

Run it after make_fixtures.py and in the same environment (described in its docstring):

    /tmp/oracle/bin/python -m tests.golden.make_a2c_fixtures

    a2c_<actions>.npz   weights after STEPS calls of A2C.train(), one optimizer step each, on the injected samples of
                        ppo_<actions>.npz from its initial weights, in float64: several calls, so that the optimizer
                        state is used; losses and gradient norm of the last one
    a2c_rollout.npz     weights after one call on the rollout of ppo_rollout.npz, from raw rewards on, with λ = 1
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common import policies
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from tests.golden.make_fixtures import ACTIONS, HERE, SAMPLES, UNITS, Blank, Order, advantages, fill, weights_of

STEPS = 3
CLASSES = {"rmsprop_tf": RMSpropTFLike, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
COMMON: dict[str, Any] = {
    "vf_coef": 0.7,
    "ent_coef": 0.05,
    "max_grad_norm": 0.2,
    "normalize_advantages": False,
    "optimizer": {"name": "rmsprop", "lr": 3e-3, "alpha": 0.99, "eps": 1e-5},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "rmsprop_tf": {"optimizer": {"name": "rmsprop_tf", "lr": 3e-3, "alpha": 0.99, "eps": 1e-5}},
    "rmsprop_tf_momentum": {
        "optimizer": {"name": "rmsprop_tf", "lr": 3e-3, "alpha": 0.9, "eps": 1e-3, "momentum": 0.8, "centered": True}
    },
    "adam": {"optimizer": {"name": "adam", "lr": 3e-3, "eps": 1e-5}},
    "sgd": {"optimizer": {"name": "sgd", "lr": 3e-2, "momentum": 0.9}, "max_grad_norm": 0.0},  # the unclipped gradient
    "normalize_advantages": {"normalize_advantages": True},
    "small_max_grad_norm": {
        "optimizer": {"name": "rmsprop_tf", "lr": 3e-3, "alpha": 0.99, "eps": 1e-5},
        "max_grad_norm": 0.01,
    },
}
ROLLOUT = {"gamma": 0.98, "gae_lambda": 1.0}


def make_model(action_space: spaces.Space, setting: dict[str, Any], weights: dict, samples: int = SAMPLES) -> A2C:
    """Return SB3's A2C in float64 with separate tanh networks for policy and value."""
    keys = dict(setting["optimizer"])
    name, lr = keys.pop("name"), keys.pop("lr")
    networks: dict[str, Any] = {"net_arch": [UNITS, UNITS]}
    if name == "rmsprop":  # the default of SB3
        assert keys.pop("alpha") == 0.99
        how = {"use_rms_prop": True, "rms_prop_eps": keys.pop("eps")}
        assert not keys
    else:
        how = {"use_rms_prop": False}
        networks |= {"optimizer_class": CLASSES[name], "optimizer_kwargs": keys}
    model = A2C(
        "MlpPolicy",
        Blank(action_space),
        n_steps=samples,
        learning_rate=lr,
        ent_coef=setting["ent_coef"],
        vf_coef=setting["vf_coef"],
        max_grad_norm=setting["max_grad_norm"] or float("inf"),
        normalize_advantage=setting["normalize_advantages"],
        policy_kwargs=networks,
        device="cpu",
        **how,
    )
    model.policy.double()
    model.policy.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    model.set_logger(stable_baselines3.common.logger.Logger(None, []))
    return model


def train(model: A2C, samples: int) -> dict[str, np.ndarray]:
    """Run SB3's A2C.train() on samples in their order; return its logged values and the gradient norm."""
    norms: list[float] = []
    clip, permutation = torch.nn.utils.clip_grad_norm_, np.random.permutation

    def record_norm(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = clip(*args, **kwargs)
        norms.append(float(norm))
        return norm

    torch.nn.utils.clip_grad_norm_, np.random.permutation = record_norm, Order(np.arange(samples)[None])
    try:
        model.train()
    finally:
        torch.nn.utils.clip_grad_norm_, np.random.permutation = clip, permutation
    (norm,) = norms
    losses = {
        name: model.logger.name_to_value[f"train/{name}"] for name in ("policy_loss", "value_loss", "entropy_loss")
    }
    return {name: np.float64(value) for name, value in (losses | {"grad_norm": norm}).items()}


def part(content: Any, prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose name has this prefix, without it."""
    return {name.removeprefix(prefix): content[name] for name in content if name.startswith(prefix)}


def update_fixture(name: str) -> None:
    """Write weights after STEPS updates of every variant, for one kind of action."""
    given = np.load(HERE / f"ppo_{name}.npz")
    content: dict[str, np.ndarray] = {}
    for variant, changes in VARIANTS.items():
        setting = COMMON | changes
        model = make_model(ACTIONS[name], setting, part(given, "initial/"))
        fill(model, part(given, "samples/"))
        logged = [train(model, SAMPLES) for _ in range(STEPS)]
        if setting["max_grad_norm"]:
            assert all(each["grad_norm"] > setting["max_grad_norm"] for each in logged), "the clip is not active"
        content |= {f"final/{variant}/{k}": v for k, v in weights_of(model).items()}
        content |= {f"logged/{variant}/{k}": v for k, v in logged[-1].items()}
    np.savez_compressed(HERE / f"a2c_{name}.npz", **content)


def rollout_fixture() -> None:
    """Write advantages and results of SB3's A2C.train() from raw rewards on one rollout with episode ends inside."""
    data = dict(np.load(HERE / "ppo_rollout.npz"))
    length, envs = data["reward"].shape
    model = make_model(ACTIONS["discrete"], COMMON, part(data, "initial/"), length * envs)
    with torch.no_grad():
        last_value = model.policy.predict_values(torch.from_numpy(data["last_obs"]).double()).flatten().numpy()
    buffer = advantages(data, last_value, **ROLLOUT)
    arrays = {"features": data["features"], "action": data["action"], "old_logprob": data["old_logprob"]}
    arrays |= {"old_value": data["value"], "advantage": buffer.advantages, "returns": buffer.returns}
    kinds = {"action": np.int64}
    fill(model, {k: v.reshape(-1, *v.shape[2:]).astype(kinds.get(k, np.float64)) for k, v in arrays.items()})
    train(model, length * envs)
    np.savez_compressed(HERE / "a2c_rollout.npz", **{f"final/{k}": v for k, v in weights_of(model).items()})


def main() -> None:
    """Write every fixture and its settings."""
    torch.set_num_threads(1)
    # SB3 casts observations to float32; the golden values must be more exact.
    policies.preprocess_obs = lambda obs, *args, **kwargs: obs.double()
    for name in ACTIONS:
        update_fixture(name)
    rollout_fixture()
    description = {
        "stable_baselines3": stable_baselines3.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "common": COMMON,
        "variants": VARIANTS,
        "steps": STEPS,
        "rollout": ROLLOUT,
    }
    (HERE / "a2c_fixtures.json").write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
