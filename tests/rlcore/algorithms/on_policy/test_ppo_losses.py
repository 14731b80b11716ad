from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.ppo.config import Config
from rlcore.algorithms.on_policy.ppo.losses import PPOSamples, objective, value_loss
from rlcore.functional.distributions import Categoricals

VALUE, OLD, RETURNS = [0.5, 3.0, -1.0], [2.0, 1.0, 0.0], [0.0, 0.0, 2.0]


def losses(*arguments: object) -> tuple[Tensor, Tensor]:
    """Return the losses and their gradients with respect to the values."""
    value = torch.tensor(VALUE, dtype=torch.float64, requires_grad=True)
    old, returns = torch.tensor(OLD).double(), torch.tensor(RETURNS).double()
    loss = value_loss(value, old, returns, *arguments)  # type: ignore[arg-type]
    return loss.detach(), torch.autograd.grad(loss.sum(), value)[0]


@pytest.mark.parametrize(
    ("arguments", "expected", "gradient"),
    [
        # Errors d of 0.5, 3 and -3; the squared error has the gradient 2 d.
        ((None, "mse"), [0.25, 9, 9], [1, 6, -6]),
        # ½ d², |d| - ½, |d| - ½; the gradients are d, 1 and -1.
        ((None, "smooth_l1"), [0.125, 2.5, 2.5], [0.5, 1, -1]),
        # A loss above the cap has no gradient.
        ((None, "smooth_l1", 2.0), [0.125, 2, 2], [0.5, 0, 0]),
        ((None, "mse", 0.25), [0.25, 0.25, 0.25], [1, 0, 0]),
        # Clipped values 1.25, 1.75 and -0.75: only the first has a larger error, which has no gradient.
        ((0.75, "mse"), [1.5625, 9, 9], [0, 6, -6]),
        ((0.75, "smooth_l1"), [0.75, 2.5, 2.5], [0, 1, -1]),
    ],
)
def test_value_loss_matches_hand_calculation(
    arguments: tuple[object, ...], expected: list[float], gradient: list[float]
) -> None:
    loss, found = losses(*arguments)
    assert loss.tolist() == expected
    assert found.tolist() == gradient


@pytest.mark.parametrize(("vf_clip_coef", "first"), [(0.75, 1.25), (None, 1.875)])
def test_objective_clips_values_by_their_own_epsilon(vf_clip_coef: float | None, first: float) -> None:
    """The clipped value of the first sample is 2 - 0.75, or 2 - 0.125 with the ε of the surrogate objective."""
    value, old, returns = (torch.tensor(part) for part in (VALUE, OLD, RETURNS))
    action, zeros = torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3)
    batch = PPOSamples({}, action, zeros, old, zeros, returns, torch.ones(3))
    config = Config(total_steps=1, clip_vloss=True, vf_clip_coef=vf_clip_coef)
    policy = Categoricals(torch.zeros(3, 2), (2,))
    _, _, means = objective(policy, value, batch, {"clip_coef": 0.125, "ent_coef": 0.0}, config)
    assert means["Loss/value_loss"].item() == pytest.approx((first**2 + 9 + 9) / 3)
