"""Write the golden values of SAC: results of Stable-Baselines3's SAC.train() for injected batches and noise.

sac.npz     for every variant: weights of actor, critics, targets and log α after STEPS gradient steps in float64,
            and the logged values of the last step; with initial weights, batches and noise
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from tests.golden.fixtures import part, tensors
from tests.golden.makers.files import versions, write_arrays, write_settings
from tests.golden.makers.sb3 import Blank, compute_in_float64, without_log

OBS, ACTIONS, UNITS, BATCH, STEPS = 5, 2, 8, 40, 3
BLANK = Blank(
    spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
    spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
)
LOSSES = ("actor_loss", "critic_loss", "ent_coef_loss")
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


def make_model(setting: dict[str, Any]) -> SAC:
    start = f"auto_{setting['alpha']}" if not setting["fixed"] else setting["alpha"]
    model = SAC(
        "MlpPolicy",
        BLANK,
        learning_rate=setting["lr"],
        gamma=setting["gamma"],
        tau=setting["tau"],
        ent_coef=start,
        target_entropy="auto" if setting["target_entropy"] is None else setting["target_entropy"],
        policy_kwargs={"net_arch": [UNITS, UNITS], "n_critics": setting["n"]},
        device="cpu",
        seed=7,
    )
    return in_float64(model, setting["lr"])


def in_float64(model: Any, lr: float, **options: Any) -> Any:
    """Return the model in float64, with the log-probability without its ε for log 0.

    Args:
        model: SAC or CrossQ.
        lr: learning rate.
        **options: of the optimizers of actor and critics.
    """
    model.policy.double()
    model.actor.action_dist.epsilon = 0.0
    for optimizer in (model.actor.optimizer, model.critic.optimizer):
        optimizer.__init__(optimizer.param_groups[0]["params"], lr=lr, **options)  # of the current parameters
    if model.ent_coef_optimizer is not None:
        model.log_ent_coef = model.log_ent_coef.detach().double().requires_grad_(True)
        model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=lr)
    else:
        model.ent_coef_tensor = model.ent_coef_tensor.double()
    return without_log(model)


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """Return all weights and statistics, under SB3's names; CrossQ has no targets."""
    parts = [name for name in ("actor", "critic", "critic_target") if getattr(model, name, None)]
    named = {f"{place}.{name}": v for place in parts for name, v in getattr(model, place).state_dict().items()}
    if model.ent_coef_optimizer is not None:
        named["log_ent_coef"] = model.log_ent_coef
    return {name: value.detach().numpy().copy() for name, value in named.items()}


def train(
    model: Any, batch: dict[str, np.ndarray], noise: np.ndarray, names: tuple[str, ...] = LOSSES
) -> dict[str, np.ndarray]:
    """Run one gradient step of SB3.

    Args:
        model: SAC or CrossQ.
        batch: obs, u, next_obs, done, reward, [BATCH, ...].
        noise: [2, BATCH, ACTIONS], in the order in which the model draws it.
        names: of the losses that are returned.

    Returns:
        The logged losses.
    """
    given = tensors(batch)
    samples = ReplayBufferSamples(
        given["obs"], given["u"].tanh(), given["next_obs"], given["done"][:, None], given["reward"][:, None]
    )
    left = iter(torch.from_numpy(noise))
    drawn = mock.patch("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(left))
    with drawn, mock.patch.object(model.replay_buffer, "sample", lambda *args, **kwargs: samples):
        model.train(gradient_steps=1, batch_size=BATCH)
    logged = part(model.logger.name_to_value, "train/")
    return {name: np.float64(logged[name]) for name in names if name in logged}


def draw(rng: np.random.Generator, obs: np.ndarray, next_obs: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return batches with the given observations [STEPS, BATCH, OBS], and noise."""
    steps = len(obs)
    batches = {
        "obs": obs,
        "next_obs": next_obs,
        "u": rng.normal(size=(steps, BATCH, ACTIONS)),
        "done": (rng.random((steps, BATCH)) < 0.3).astype(np.float64),
        "reward": rng.normal(size=(steps, BATCH)),
    }
    return batches, rng.normal(size=(steps, 2, BATCH, ACTIONS))


def results(
    variant: str, model: Any, batches: dict[str, np.ndarray], noise: np.ndarray, step: Callable[..., Any]
) -> dict[str, np.ndarray]:
    """Return weights before and after gradient steps, and the logged losses of the last, by their names in the file."""
    content = {f"initial/{variant}/{name}": value for name, value in weights_of(model).items()}
    for i, drawn in enumerate(noise):
        logged = step(model, {name: value[i] for name, value in batches.items()}, drawn)
    content |= {f"final/{variant}/{name}": value for name, value in weights_of(model).items()}
    return content | {f"logged/{variant}/{name}": value for name, value in logged.items()}


def main() -> None:
    """Write the file and its settings."""
    compute_in_float64()
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, STEPS, BATCH, OBS)).astype(np.float32).astype(np.float64)  # scaled
    batches, noise = draw(rng, obs, next_obs)
    content = {f"batches/{name}": value for name, value in batches.items()} | {"noise": noise}
    for variant, changes in VARIANTS.items():
        model = make_model(COMMON | changes)
        with torch.no_grad():
            for module in model.critic.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.mul_(3)  # wider, so that each critic is sometimes the lowest
            for slow, fast in zip(model.critic_target.parameters(), model.critic.parameters(), strict=True):
                slow.copy_(0.8 * fast)  # targets that differ from the critics
        content |= results(variant, model, batches, noise, train)
    write_arrays("sac", content)
    description = versions("stable_baselines3", "torch", "numpy") | {
        "common": COMMON,
        "variants": VARIANTS,
        "steps": STEPS,
    }
    write_settings("sac", description)


if __name__ == "__main__":
    main()
