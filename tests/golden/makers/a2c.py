"""Write the golden values of A2C: results of Stable-Baselines3's A2C.train() for the inputs of PPO's fixtures.

a2c_<actions>.npz   weights after STEPS calls of A2C.train(), one optimizer step each, on the injected samples of
                    ppo_<actions>.npz from its initial weights, in float64: several calls, so that the optimizer
                    state is used; losses and gradient norm of the last one
a2c_rollout.npz     weights after one call on the rollout of ppo_rollout.npz, from raw rewards on, with λ = 1
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from tests.golden.fixtures import arrays, part, tensors
from tests.golden.makers.files import versions, write_arrays, write_settings
from tests.golden.makers.ppo import ACTIONS, OBSERVATIONS, SAMPLES, UNITS, call_train, fill, fill_rollout, weights_of
from tests.golden.makers.sb3 import Blank, compute_in_float64, without_log

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
        Blank(OBSERVATIONS, action_space),
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
    model.policy.load_state_dict(tensors(weights))
    return without_log(model)


def train(model: A2C, samples: int) -> dict[str, np.ndarray]:
    """Run SB3's A2C.train() on samples in their order; return its logged values and the gradient norm."""
    names = {name: name for name in ("policy_loss", "value_loss", "entropy_loss")}
    logged, (norm,) = call_train(model, np.arange(samples)[None], names)
    return logged | {"grad_norm": np.float64(norm)}


def update_fixture(name: str) -> None:
    """Write weights after STEPS updates of every variant, for one kind of action."""
    given = arrays(f"ppo_{name}")
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
    write_arrays(f"a2c_{name}", content)


def rollout_fixture() -> None:
    """Write advantages and results of SB3's A2C.train() from raw rewards on one rollout with episode ends inside."""
    data = arrays("ppo_rollout")
    length, envs = data["reward"].shape
    model = make_model(ACTIONS["discrete"], COMMON, part(data, "initial/"), length * envs)
    with torch.no_grad():
        last_value = model.policy.predict_values(torch.from_numpy(data["last_obs"]).double()).flatten().numpy()
    fill_rollout(model, data, last_value, **ROLLOUT)
    train(model, length * envs)
    write_arrays("a2c_rollout", {f"final/{k}": v for k, v in weights_of(model).items()})


def main() -> None:
    """Write every file and the settings."""
    compute_in_float64()
    for name in ACTIONS:
        update_fixture(name)
    rollout_fixture()
    description = versions("stable_baselines3", "torch", "numpy") | {
        "common": COMMON,
        "variants": VARIANTS,
        "steps": STEPS,
        "rollout": ROLLOUT,
    }
    write_settings("a2c", description)


if __name__ == "__main__":
    main()
