"""Write the golden values of SAC: results of Stable-Baselines3's SAC.train() for injected batches and noise.

Run it in the environment of make_fixtures.py (described in its docstring):

    /tmp/oracle/bin/python -m tests.golden.make_sac_fixtures

    sac.npz     for every variant: weights of actor, critics, targets and log α after STEPS gradient steps in float64,
                and the logged values of the last step; with initial weights, batches and noise
"""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common import policies
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from tests.golden.make_fixtures import HERE

OBS, ACTIONS, UNITS, BATCH, STEPS = 5, 2, 8, 40, 3
COMMON: dict[str, Any] = {
    "gamma": 0.97,
    "tau": 0.1,
    "lr": 3e-3,
    "alpha": 0.3,
    "target_entropy": None,
    "fixed": False,
    "n": 2,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "fixed_alpha": {"fixed": True},
    "target_entropy": {"target_entropy": -0.5},
    "one_critic": {"n": 1},
    "three_critics": {"n": 3},
}


class Blank(gymnasium.Env):
    """Environment with spaces that is never stepped."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBS,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)


def make_model(setting: dict[str, Any]) -> SAC:
    """Return SB3's SAC in float64, with the log-probability without its ε for log 0."""
    start = f"auto_{setting['alpha']}" if not setting["fixed"] else setting["alpha"]
    model = SAC(
        "MlpPolicy",
        Blank(),
        learning_rate=setting["lr"],
        gamma=setting["gamma"],
        tau=setting["tau"],
        ent_coef=start,
        target_entropy="auto" if setting["target_entropy"] is None else setting["target_entropy"],
        policy_kwargs={"net_arch": [UNITS, UNITS], "n_critics": setting["n"]},
        device="cpu",
        seed=7,
    )
    model.policy.double()
    model.actor.action_dist.epsilon = 0.0
    for optimizer in (model.actor.optimizer, model.critic.optimizer):
        optimizer.__init__(optimizer.param_groups[0]["params"], lr=setting["lr"])  # of the current parameters
    if not setting["fixed"]:
        model.log_ent_coef = model.log_ent_coef.detach().double().requires_grad_(True)
        model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=setting["lr"])
    else:
        model.ent_coef_tensor = model.ent_coef_tensor.double()
    model.set_logger(stable_baselines3.common.logger.Logger(None, []))
    return model


def weights_of(model: SAC) -> dict[str, np.ndarray]:
    """Return all weights, under SB3's names."""
    named = {
        f"{part}.{name}": value
        for part in ("actor", "critic", "critic_target")
        for name, value in getattr(model, part).state_dict().items()
    }
    if model.ent_coef_optimizer is not None:
        named["log_ent_coef"] = model.log_ent_coef
    return {name: value.detach().numpy().copy() for name, value in named.items()}


def train(model: SAC, batch: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
    """Run one gradient step of SB3; `noise` [2, BATCH, ACTIONS]: of the actor loss and of the target."""
    given = {name: torch.from_numpy(value) for name, value in batch.items()}
    samples = ReplayBufferSamples(
        given["obs"], given["u"].tanh(), given["next_obs"], given["done"][:, None], given["reward"][:, None]
    )
    left = iter(torch.from_numpy(noise))
    drawn = mock.patch("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(left))
    with drawn, mock.patch.object(model.replay_buffer, "sample", lambda *args, **kwargs: samples):
        model.train(gradient_steps=1, batch_size=BATCH)
    names = ("actor_loss", "critic_loss", "ent_coef_loss")
    return {
        name: np.float64(model.logger.name_to_value[f"train/{name}"])
        for name in names
        if f"train/{name}" in model.logger.name_to_value
    }


def main() -> None:
    """Write the fixture and its settings."""
    torch.set_num_threads(1)
    # SB3 casts observations to float32; the golden values must be more exact.
    policies.preprocess_obs = lambda obs, *args, **kwargs: obs.double()
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, STEPS, BATCH, OBS)).astype(np.float32).astype(np.float64)  # scaled
    content: dict[str, np.ndarray] = {
        "batches/obs": obs,
        "batches/next_obs": next_obs,
        "batches/u": rng.normal(size=(STEPS, BATCH, ACTIONS)),
        "batches/done": (rng.random((STEPS, BATCH)) < 0.3).astype(np.float64),
        "batches/reward": rng.normal(size=(STEPS, BATCH)),
        "noise": rng.normal(size=(STEPS, 2, BATCH, ACTIONS)),
    }
    for variant, changes in VARIANTS.items():
        model = make_model(COMMON | changes)
        for module in model.critic.modules():
            if isinstance(module, torch.nn.Linear):  # wider, so that each critic is sometimes the lowest
                with torch.no_grad():
                    module.weight.mul_(3)
        with torch.no_grad():  # targets that differ from the critics
            for slow, fast in zip(model.critic_target.parameters(), model.critic.parameters(), strict=True):
                slow.copy_(0.8 * fast)
        content |= {f"initial/{variant}/{name}": value for name, value in weights_of(model).items()}
        for step in range(STEPS):
            batch = {
                name.removeprefix("batches/"): content[name][step] for name in content if name.startswith("batches/")
            }
            logged = train(model, batch, content["noise"][step])
        content |= {f"final/{variant}/{name}": value for name, value in weights_of(model).items()}
        content |= {f"logged/{variant}/{name}": value for name, value in logged.items()}
    np.savez_compressed(HERE / "sac.npz", **content)
    made = {
        "stable_baselines3": stable_baselines3.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "common": COMMON,
        "variants": VARIANTS,
        "steps": STEPS,
    }
    (HERE / "sac_fixtures.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
