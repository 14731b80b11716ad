"""Actors on states of a world model against closed forms: distributions, clipped actions and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v3.config import ActorConfig
from rlcore.algorithms.dreamer.latent_actor import CONTINUOUS, LatentActor
from rlcore.algorithms.dreamer.world_keys import PolicySpec
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec

BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
CHOICES = ActionSpec("MultiDiscrete", (2,), "int64", (3, 2), (0, 0))


def actor(action: ActionSpec, kind: str, **keys: float) -> LatentActor:
    config = ActorConfig(8, 1, **keys)
    return LatentActor(5, action, config.layers, config.policy(kind), True, 1.0, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("kind", "mean", "std"),
    # for the outputs m = 0.5 and s = -1, with min .1, max 1, init 2
    [
        ("scaled", math.tanh(0.5), 0.9 / (1 + math.exp(-1)) + 0.1),
        ("trunc_normal", math.tanh(0.5), 2 / (1 + math.exp(-0.5)) + 0.1),
        ("tanh_normal", 5 * math.tanh(0.1), math.log1p(math.exp(1)) + 0.1),
        ("normal", 0.5, math.log1p(math.exp(1)) + 0.1),
    ],
)
def test_continuous_policy_has_mean_and_std_of_formula(kind: str, mean: float, std: float) -> None:
    form = ActorConfig(8, 1).policy(kind)
    assert isinstance(form, PolicySpec)
    found = CONTINUOUS[kind](torch.tensor([0.5]), torch.tensor([-1.0]), form)
    spread: Tensor = found.std if kind == "trunc_normal" else found.log_std.exp()
    torch.testing.assert_close((found.mean, spread), (torch.tensor([mean]), torch.tensor([std])))


def test_action_clip_scales_action_and_keeps_gradient() -> None:
    action = torch.tensor([[0.5, -3.0]], requires_grad=True)
    taken = actor(BOX, "scaled", action_clip=1.5).clip(action)
    torch.testing.assert_close(taken, torch.tensor([[0.5, -1.5]]))
    (gradient,) = torch.autograd.grad(taken.sum(), action)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.5]]))  # times the clip factor
    assert actor(BOX, "scaled", action_clip=0.0).clip(action) is action


def test_discrete_action_is_one_hot_with_straight_through_gradient() -> None:
    one, feat = actor(CHOICES, "discrete", unimix=0.3), torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    action, taken = one(feat, one.noise(Noise(0, "probe"), 4))
    assert action.shape == (4, 2) and taken.shape == (4, 5)
    expected = [torch.nn.functional.one_hot(action[:, part], n) for part, n in enumerate(CHOICES.nvec)]
    torch.testing.assert_close(taken, torch.cat(expected, -1).float())
    parts = one.policy(feat).parts
    for part, n in zip(parts, CHOICES.nvec, strict=True):  # each action has at least its uniform part
        assert part.exp().min() >= 0.3 / n
        torch.testing.assert_close(part.exp().sum(-1), torch.ones(4))
    weight, parameters = torch.arange(5.0), [*one.parameters()]
    found = torch.autograd.grad((taken * weight).sum(), parameters)
    of_probabilities = torch.autograd.grad((torch.cat([part.exp() for part in parts], -1) * weight).sum(), parameters)
    torch.testing.assert_close(found, of_probabilities)
