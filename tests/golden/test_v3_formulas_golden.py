"""Dreamer V3 against losses and gradients of its author's code and of TorchRL; mutants fail."""

from __future__ import annotations

import pytest

from rlcore.algorithms.dreamer.dreamer_v3 import learner as dreamer_v3
from tests.golden import v3_formulas_oracle as oracle
from tests.golden.dreamer_v3_mutants import MUTANTS
from tests.golden.mutants import changed

SOURCES = [pytest.param(oracle.AUTHOR, id="author"), pytest.param(oracle.TORCHRL, id="torchrl")]
NAMED = {mutant.name: mutant for mutant in MUTANTS}
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
def test_v3_model_losses_and_gradients_match_references(source: oracle.Source) -> None:
    oracle.check_model(dreamer_v3, source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", oracle.SCALES)
def test_v3_imagined_returns_and_losses_match_references(source: oracle.Source, scale: str) -> None:
    oracle.check_imagined(dreamer_v3, source, scale)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OF_MODEL)
def test_reference_check_detects_model_mutant(source: oracle.Source, name: str) -> None:
    with changed(NAMED[name].function, NAMED[name].change), pytest.raises(AssertionError):
        oracle.check_model(dreamer_v3, source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OF_IMAGINED)
def test_reference_check_detects_imagination_mutant(source: oracle.Source, name: str) -> None:
    with changed(NAMED[name].function, NAMED[name].change), pytest.raises(AssertionError):
        oracle.check_imagined(dreamer_v3, source, "wide")


@pytest.mark.parametrize("source", SOURCES)
def test_reference_check_detects_scale_without_floor(source: oracle.Source) -> None:
    mutant = NAMED["no percentile floor"]
    with changed(mutant.function, mutant.change), pytest.raises(AssertionError):
        oracle.check_imagined(dreamer_v3, source, "narrow")
