"""Exploration noise: its effect on given actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.agent import Explorer
from rlcore.algorithms.dreamer.world_keys import ActorKeys
from rlcore.functional.noise import Noise
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec

BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
CHOICES = ActionSpec("MultiDiscrete", (2,), "int64", nvec=(5, 3), start=(0, 0))


class Fixed(torch.nn.Module):
    """Agent that always takes the given action and keeps it in its carry."""

    keys = ("state",)

    def __init__(self, action: ActionSpec, chosen: Tensor, masks: dict[str, ArraySpec]) -> None:
        super().__init__()
        self.spec, self.masks = EnvSpec("x", masks, action), tuple(masks)
        self.chosen, self.actor = chosen, SimpleNamespace(action=action, flat=lambda action: action.float())

    def act(self, carry: Any, obs: Any, is_first: Tensor, rng: Any, greedy: bool) -> Any:
        return {"deter": carry, "action": self.chosen.float()}, self.chosen, {}


def explored(
    action: ActionSpec,
    chosen: Tensor,
    amount: float,
    rng: Noise | None,
    greedy: bool = False,
    masks: dict[str, Tensor] | None = None,
) -> Tensor:
    masks = masks or {}
    specs = {key: ArraySpec(tuple(mask.shape[1:]), "bool", kind="mask") for key, mask in masks.items()}
    explorer = Explorer(Fixed(action, chosen, specs), amount)  # pyright: ignore[reportArgumentType]
    carry, taken, _ = explorer.act({"deter": chosen}, masks, torch.zeros(len(chosen)).bool(), rng, greedy)
    torch.testing.assert_close(carry["action"], taken.float())  # the carry holds the action that was taken
    return taken


def test_explorer_adds_clipped_normal_noise_to_continuous_actions() -> None:
    chosen = torch.tensor([0.2, 0.9]).expand(50_000, 2)
    taken = explored(BOX, chosen, 0.3, Noise(0, "probe"))
    torch.testing.assert_close(taken[:, 0].mean(), torch.tensor(0.2), rtol=0, atol=0.3 * 5 / 50_000**0.5)
    assert taken[:, 0].std().item() == pytest.approx(0.3, rel=0.02)
    assert taken.max().item() == 1.0 and taken.min().item() >= -1.0
    # P(0.9 + 0.3 z > 1) = 1 - Φ(1/3) = 0.3694
    assert (taken[:, 1] == 1).float().mean().item() == pytest.approx(0.3694, abs=0.011)


def test_explorer_randomizes_discrete_actions_with_given_probability() -> None:
    chosen = torch.tensor([4, 0]).expand(50_000, 2)
    taken = explored(CHOICES, chosen, 0.5, Noise(0, "probe"))
    for column, n in enumerate((5, 3)):
        share = torch.bincount(taken[:, column], minlength=n) / 50_000
        expected = torch.full((n,), 0.5 / n)
        expected[chosen[0, column]] += 0.5
        torch.testing.assert_close(share, expected, rtol=0, atol=0.0112)  # five standard errors
    both = ((taken[:, 0] != 4) & (taken[:, 1] != 0)).float().mean().item()
    assert both == pytest.approx(0.4 * 1 / 3, abs=0.011)  # the parts are independent


@pytest.mark.parametrize("greedy", [True, False])
def test_explorer_leaves_greedy_and_noiseless_actions_unchanged(greedy: bool) -> None:
    chosen = torch.tensor([[0.2, 0.9]])
    rng = Noise(0, "probe") if greedy else None
    torch.testing.assert_close(explored(BOX, chosen, 0.3, rng, greedy), chosen)


def test_exploration_amount_decays_to_minimum() -> None:
    keys = ActorKeys(expl_amount=0.4, expl_decay=100.0, expl_min=0.15)
    assert [keys.exploration(step) for step in (0, 100, 150, 10_000)] == [0.4, 0.2, 0.15, 0.15]
    assert ActorKeys(expl_amount=0.4).exploration(10**6) == 0.4
    assert ActorKeys().exploration(0) == 0 and ActorKeys(expl_min=0.1).exploration(0) == 0.1


def test_explorer_samples_allowed_actions_uniformly() -> None:
    allowed = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0]).bool().expand(60_000, 8)
    chosen = torch.tensor([2, 1]).expand(60_000, 2)
    taken = explored(CHOICES, chosen, 1.0, Noise(0, "probe"), masks={"action_mask": allowed})
    share = torch.bincount(taken[:, 0], minlength=5) / 60_000
    torch.testing.assert_close(share, torch.tensor([1, 0, 1, 1, 0]) / 3, rtol=0, atol=0.0097)  # five standard errors
    assert (taken[:, 1] == 1).all()
