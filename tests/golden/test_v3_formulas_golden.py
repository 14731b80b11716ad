"""Dreamer V3's formulas against its author's code and TorchRL, on the same logits and states; mutants fail."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from rlcore.algorithms.dreamer.dreamer_v3.config import ActorConfig
from rlcore.algorithms.dreamer.latents import unimix
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.algorithms.dreamer.world_keys import MomentsConfig
from rlcore.algorithms.dreamer.world_model import WorldModel
from rlcore.functional.scalars import TwoHot, squared_distance
from tests.golden.dreamers import TOLERANCE, near
from tests.golden.fixtures import arrays, part, tensors
from tests.golden.imagined import Heads, objectives
from tests.golden.test_dreamer_v3_golden import MUTANTS


@dataclass(frozen=True)
class Source:
    """Reference with its file, the grid of its two-hot numbers, and the tolerance."""

    file: str
    grid: str
    within: float

    def near(self, what: str, found: Tensor, expected: Any) -> None:
        """Refuse a greater difference."""
        near(what, found, expected, self.within)


SCALES = ("wide", "narrow")
# The author's percentiles, and more of TorchRL's numbers, are float32.
AUTHOR, TORCHRL = Source("author_dreamer_v3", "symlog", 5e-7), Source("torchrl_dreamer_v3", "symexp", TOLERANCE)
TOLD: Any = SimpleNamespace(
    continue_head=True, predict_continue=lambda logits: logits
)  # a head of a world model with given outputs


def given(prefix: str, file: str = TORCHRL.file) -> dict[str, Any]:
    """Return tensors of a fixture; the inputs shared by all references are in one file."""
    return tensors(part(arrays(file), prefix))


def settings() -> dict[str, float]:
    """Return the settings shared by all references."""
    return {name: value.item() for name, value in given("settings/").items()}


def check_model(source: Source) -> None:
    """Check KL divergences of both sides, two-hot loss, vector distance, likelihood of ends: means and gradients."""
    held, keys, expected = given("model/"), settings(), given("expected/model/", source.file)
    names = ("posterior", "prior", "guess", "reward_logits", "continue_logits")
    leaves = {name: held[name].requires_grad_() for name in names}
    posterior, prior = (unimix(leaves[name], keys["unimix"]) for name in ("posterior", "prior"))
    kl = dreamer_v3.kl_loss(posterior, prior, keys["dynamic"], keys["representation"], keys["nats"]).mean()
    reward = TwoHot(held["reward_logits"].shape[-1], source.grid).loss(leaves["reward_logits"], held["reward"]).mean()
    distance = squared_distance(leaves["guess"], held["seen"], 2).mean()
    ends = WorldModel.continue_loss(TOLD, leaves["continue_logits"], 1 - held["terminated"].double()).mean()
    source.near("divergences", kl, expected["dynamic"] + expected["representation"])
    source.near("reward", reward, expected["reward"])
    source.near("observation", distance, expected["reco"])
    source.near("continue", ends, expected["continue"])
    found = torch.autograd.grad(kl + reward + distance + ends, [*leaves.values()])
    for name, gradient in zip(names, found, strict=True):
        source.near(f"gradient of {name}", 100 * gradient, 100 * expected[f"gradient/{name}"])


def check_imagined(source: Source, scale: str) -> None:
    """Check λ-returns, weights, scale, losses of actor and critic, and their gradients."""
    held, keys, expected = given("imagined/"), settings(), given(f"expected/{scale}/", source.file)
    feat, action, terminated = (held.pop(name) for name in ("feat", "action", "terminated"))
    heads = Heads(TwoHot(len(held["bell"]), source.grid), **held, unimix=keys["unimix"])
    for weight in (heads.actor, heads.critic):
        weight.requires_grad_()
    config = dreamer_v3.Config(
        total_steps=1, gamma=keys["gamma"], lmbda=keys["lmbda"], actor=ActorConfig(1, 1, ent_coef=keys["coef"])
    )
    moments: Any = ReturnScale(MomentsConfig(keys["decay"]))
    moments.low, moments.high = given("scales/")[scale]
    policy, value = objectives(dreamer_v3, config, heads, feat, action, terminated, mix=1.0, moments=moments)
    source.near("λ-returns", policy[3]["returns"], expected["returns"])
    source.near("weights", policy[3]["weight"], expected["weight"])
    source.near("low", moments.low, expected["low"])
    source.near("high", moments.high, expected["high"])
    compare("policy", source, policy, heads.actor, expected["policy"], expected["gradient/actor"])
    compare("value", source, value, heads.critic, expected["value"], expected["gradient/critic"])


def compare(name: str, source: Source, found: Any, parameter: Tensor, loss: Tensor, gradient: Tensor) -> None:
    """Compare a loss as an optimizer takes it, and its gradient with respect to one parameter."""
    total = found[0] / found[1]
    source.near(f"loss of {name}", total, loss)
    source.near(f"gradient of {name}", *(10 * each for each in (torch.autograd.grad(total, parameter)[0], gradient)))


SOURCES = [pytest.param(AUTHOR, id="author"), pytest.param(TORCHRL, id="torchrl")]
OF_MODEL = (
    "KL sides swapped",
    "KL from prior to posterior",
    "gradient of the prior's KL reaches the posterior",
    "gradient of the posterior's KL reaches the prior",
    "clamp of each latent",
    "no free nats",
    "unimix of logits",
    "no unimix",
    "weights of the two bins exchanged",
)
OF_IMAGINED = (
    "λ-return ends without a value",
    "reward of the state that is left",
    "value of the state that is left",
    "discount one step off",
    "weights one step off",
    "no weight where an episode ended",
    "γ left out of the weights",
    "chance of going on in place of the likelier",
    "percentiles not followed",
    "no baseline",
    "imagined actions one off",
    "entropy of the wrong sign",
    "entropy without weights",
    "slow critic forgotten",
    "slow critic is the critic",
    "critic without weights",
)


@pytest.mark.parametrize("source", SOURCES)
def test_v3_model_losses_and_gradients_match_references(source: Source) -> None:
    check_model(source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", SCALES)
def test_v3_imagined_returns_and_losses_match_references(source: Source, scale: str) -> None:
    check_imagined(source, scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OF_MODEL)
def test_reference_check_detects_model_mutant(source: Source, name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises(AssertionError):
        check_model(source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OF_IMAGINED)
def test_reference_check_detects_imagination_mutant(source: Source, name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises(AssertionError):
        check_imagined(source, "wide")


@pytest.mark.parametrize("source", SOURCES)
def test_reference_check_detects_scale_without_floor(source: Source) -> None:
    with MUTANTS["no percentile floor"].applied(), pytest.raises(AssertionError):
        check_imagined(source, "narrow")
