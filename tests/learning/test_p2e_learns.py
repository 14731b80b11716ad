"""Disagreement of Plan2Explore's ensemble finds cells of a maze that a random policy did not visit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exploration import DREAMERS, HALF, LOWEST, MEDIAN, probe
from benchmarks.rooms import area_under_curve
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]


def test_area_under_curve_of_known_values() -> None:
    values, positive = np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, False, True, False])
    # Pairs (3, 1), (3, 2), (2, 1) are larger, (2, 2) is a tie: 3.5 of 4.
    assert area_under_curve(values, positive) == 0.875


def test_ensemble_loss_halves() -> None:
    """The steps are too few for a check of the AUROC."""
    assert probe("3", 0, 1_000, ["algo.replay_ratio=0.2", "algo.per_rank_batch_size=8"])["loss"] < HALF


@soak
@pytest.mark.parametrize("version", DREAMERS)
def test_disagreement_of_every_dreamer_finds_unseen_cells(version: str) -> None:
    """2,400 steps, seeds 0 to 4: the median is at least 0.60, each at least 0.50, and the loss halves."""
    found = [probe(version, seed) for seed in range(5)]
    auroc = [seed["auroc"] for seed in found]
    assert np.median(auroc) >= MEDIAN and min(auroc) >= LOWEST
    assert all(seed["loss"] < HALF for seed in found)
