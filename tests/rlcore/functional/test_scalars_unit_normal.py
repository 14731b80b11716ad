"""Likelihood of unit normals, compared with torch.distributions."""

from __future__ import annotations

import torch
from torch.distributions import Independent, Normal

from rlcore.functional.scalars import UnitNormal, squared_distance, unit_normal_loss


def test_unit_normal_loss_matches_torch() -> None:
    mean, x = torch.randn(2, 5, 3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = -Independent(Normal(mean, 1.0), 2).log_prob(x)
    torch.testing.assert_close(unit_normal_loss(mean, x, 2), expected)
    torch.testing.assert_close(squared_distance(mean, x, 2), (mean - x).square().sum((-2, -1)))
    number, prediction = UnitNormal(), mean[..., :1]
    torch.testing.assert_close(number.loss(prediction, x[..., 0]), -Normal(prediction[..., 0], 1.0).log_prob(x[..., 0]))
    torch.testing.assert_close(number.mean(prediction), prediction[..., 0])
