"""Write the golden values of CrossQ: results of sb3-contrib's CrossQ.train() for injected batches and noise.

Run it in the environment of make_fixtures.py, with sb3-contrib==2.9.2 in addition:

    /tmp/oracle/bin/python -m tests.golden.make_crossq_fixtures

    crossq.npz  for every variant: weights, running statistics and log α after STEPS gradient steps in float64, of which
                every second one also updates the policy; with initial weights, batches and noise

Two parts of its batch renormalization are changed to those of Ioffe 2017: the variance of a batch is the biased one,
and ε is 0, because it is at another place in the formula.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import stable_baselines3
import torch
from sb3_contrib import CrossQ
from sb3_contrib.common.torch_layers import BatchRenorm1d
from stable_baselines3.common import policies
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from tests.golden.make_fixtures import HERE
from tests.golden.make_sac_fixtures import ACTIONS, BATCH, COMMON, OBS, UNITS, Blank

STEPS = 4
WARM_UP = {"batch_norm": 100_000, "renorm": 0}  # variant -> batches before statistics are renormalized
BETAS = (0.5, 0.999)


def make_model(warm_up: int) -> CrossQ:
    """Return sb3-contrib's CrossQ in float64, with the log-probability without its ε for log 0."""
    model = CrossQ(
        "MlpPolicy",
        Blank(),
        learning_rate=COMMON["lr"],
        gamma=COMMON["gamma"],
        ent_coef=f"auto_{COMMON['alpha']}",
        policy_delay=2,
        policy_kwargs={
            "net_arch": [UNITS, UNITS],
            "activation_fn": torch.nn.Tanh,  # a unit that is always 0 has no variance
            "n_critics": 2,
            "renorm_warmup_steps": warm_up,
        },
        device="cpu",
        seed=7,
    )
    model.policy.double()
    model.actor.action_dist.epsilon = 0.0
    for module in model.policy.modules():
        if isinstance(module, BatchRenorm1d):
            module.eps = 0.0
        if isinstance(module, torch.nn.Linear):
            with torch.no_grad():  # actions for which log(1 - tanh²) is exact
                module.weight.mul_(0.3 if module in (model.actor.mu, model.actor.log_std) else 2)
    for optimizer in (model.actor.optimizer, model.critic.optimizer):
        optimizer.__init__(optimizer.param_groups[0]["params"], lr=COMMON["lr"], betas=BETAS)
    model.log_ent_coef = model.log_ent_coef.detach().double().requires_grad_(True)
    model.ent_coef_optimizer = torch.optim.Adam([model.log_ent_coef], lr=COMMON["lr"])
    model.set_logger(stable_baselines3.common.logger.Logger(None, []))
    return model


def weights_of(model: CrossQ) -> dict[str, np.ndarray]:
    """Return all weights and statistics, under sb3-contrib's names."""
    parts = {"actor": model.actor, "critic": model.critic}
    named = {f"{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()}
    named["log_ent_coef"] = model.log_ent_coef
    return {name: value.detach().numpy().copy() for name, value in named.items()}


def train(model: CrossQ, batch: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, float]:
    """Run one gradient step of sb3-contrib; `noise` [2, BATCH, ACTIONS]: of the target and of the actor loss."""
    given = {name: torch.from_numpy(value) for name, value in batch.items()}
    samples = ReplayBufferSamples(
        given["obs"], given["u"].tanh(), given["next_obs"], given["done"][:, None], given["reward"][:, None]
    )
    left, variance = iter(torch.from_numpy(noise)), torch.Tensor.var
    given_noise = mock.patch("torch.distributions.normal._standard_normal", lambda *args, **kwargs: next(left))
    biased = mock.patch.object(torch.Tensor, "var", lambda self, dim: variance(self, dim, correction=0))
    with given_noise, biased, mock.patch.object(model.replay_buffer, "sample", lambda *args, **kwargs: samples):
        model.train(gradient_steps=1, batch_size=BATCH)
    return {name: model.logger.name_to_value[f"train/{name}"] for name in ("actor_loss", "critic_loss")}


def main() -> None:
    """Write the fixture."""
    torch.set_num_threads(1)
    policies.preprocess_obs = lambda obs, *args, **kwargs: obs.double()  # the original casts observations to float32
    rng = np.random.default_rng(0)
    # so that ratios and differences of statistics are clipped on both sides
    scale, shift = np.array([10.0, 0.05, 1.0, 1.0, 5.0]), np.array([30.0, 0.0, 0.0, 1.0, -20.0])
    obs, next_obs = rng.normal(size=(2, STEPS, BATCH, OBS)) * scale + shift
    batches = {
        "obs": obs,
        "next_obs": next_obs + 0.3 * scale,
        "u": rng.normal(size=(STEPS, BATCH, ACTIONS)),
        "done": (rng.random((STEPS, BATCH)) < 0.3).astype(np.float64),
        "reward": rng.normal(size=(STEPS, BATCH)),
    }
    noise = rng.normal(size=(STEPS, 2, BATCH, ACTIONS))
    content = {"noise": noise} | {f"batches/{name}": value for name, value in batches.items()}
    for variant, warm_up in WARM_UP.items():
        model = make_model(warm_up)
        content |= {f"initial/{variant}/{name}": value for name, value in weights_of(model).items()}
        for step in range(STEPS):
            logged = train(model, {name: value[step] for name, value in batches.items()}, noise[step])
        content |= {f"final/{variant}/{name}": value for name, value in weights_of(model).items()}
        content |= {f"logged/{variant}/{name}": np.float64(value) for name, value in logged.items()}
    np.savez_compressed(HERE / "crossq.npz", **content)


if __name__ == "__main__":
    main()
