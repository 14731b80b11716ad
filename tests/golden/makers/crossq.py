"""Write the golden values of CrossQ: results of sb3-contrib's CrossQ.train() for injected batches and noise.

    crossq.npz  for every variant: weights, running statistics and log α after STEPS gradient steps in float64, of which
                every second one also updates the policy; with initial weights, batches and noise

Two parts of its batch renormalization are changed to those of Ioffe 2017: the variance of a batch is the biased one,
and ε is 0, because it is at another place in the formula.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch
from sb3_contrib import CrossQ
from sb3_contrib.common.torch_layers import BatchRenorm1d

from tests.golden.makers.files import write_arrays
from tests.golden.makers.sac import BATCH, BLANK, COMMON, OBS, UNITS, draw, in_float64, results, train
from tests.golden.makers.sb3 import compute_in_float64

STEPS = 4
WARM_UP = {"batch_norm": 100_000, "renorm": 0}  # variant -> batches before statistics are renormalized
BETAS = (0.5, 0.999)


def make_model(warm_up: int) -> CrossQ:
    model = CrossQ(
        "MlpPolicy",
        BLANK,
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
    for module in model.policy.double().modules():
        if isinstance(module, BatchRenorm1d):
            module.eps = 0.0
        if isinstance(module, torch.nn.Linear):
            with torch.no_grad():  # actions for which log(1 - tanh²) is exact
                module.weight.mul_(0.3 if module in (model.actor.mu, model.actor.log_std) else 2)
    return in_float64(model, COMMON["lr"], betas=BETAS)


def train_with_biased_variance(model: CrossQ, batch: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
    """Run one gradient step of sb3-contrib; `noise` [2, BATCH, ACTIONS]: of the target and of the actor loss."""
    variance = torch.Tensor.var
    with mock.patch.object(torch.Tensor, "var", lambda self, dim: variance(self, dim, correction=0)):
        return train(model, batch, noise, ("actor_loss", "critic_loss"))


def main() -> None:
    """Write the file."""
    compute_in_float64()
    rng = np.random.default_rng(0)
    # so that ratios and differences of statistics are clipped on both sides
    scale, shift = np.array([10.0, 0.05, 1.0, 1.0, 5.0]), np.array([30.0, 0.0, 0.0, 1.0, -20.0])
    obs, next_obs = rng.normal(size=(2, STEPS, BATCH, OBS)) * scale + shift
    batches, noise = draw(rng, obs, next_obs + 0.3 * scale)
    content = {"noise": noise} | {f"batches/{name}": value for name, value in batches.items()}
    for variant, warm_up in WARM_UP.items():
        content |= results(variant, make_model(warm_up), batches, noise, train_with_biased_variance)
    write_arrays("crossq", content)


if __name__ == "__main__":
    main()
