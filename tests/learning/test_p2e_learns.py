"""Disagreement of Plan2Explore's ensemble finds cells of a maze that a random policy did not visit."""

from __future__ import annotations

import numpy as np
import pytest

from flows.config.compose import compose
from tests.learning.assembly import assemble
from tests.learning.rooms import area_under_curve, explore_rooms
from tests.soaking import heavy, soak

pytestmark = [pytest.mark.slow, heavy]


def probe(version: str, seed: int, steps: int, *words: str) -> tuple[float, float]:
    """Return the AUROC of unseen cells, and the last ensemble loss divided by the first one."""
    algo = compose([f"exp=p2e_dv{version}_exploration_point_mass", *words])[1]["algo"]
    auroc, losses = explore_rooms(assemble("Test/Rooms-v0", algo, num_envs=1, seed=seed), steps)
    return auroc, float(np.mean(losses[-10:]) / np.mean(losses[:10]))


def test_area_under_curve_of_known_values() -> None:
    values, positive = np.array([3.0, 1.0, 2.0, 2.0]), np.array([True, False, True, False])
    # Pairs (3, 1), (3, 2), (2, 1) are larger, (2, 2) is a tie: 3.5 of 4.
    assert area_under_curve(values, positive) == 0.875


def test_ensemble_loss_halves() -> None:
    _, ratio = probe(
        "3", 0, 1_000, "algo.replay_ratio=0.2", "algo.per_rank_batch_size=8"
    )  # too few steps for the AUROC
    assert ratio < 0.5


@soak
@pytest.mark.parametrize("version", ["1", "2", "3", "3_5"])
def test_disagreement_of_every_dreamer_finds_unseen_cells(version: str) -> None:
    """2,400 steps, seeds 0 to 4: the median is at least 0.60, each at least 0.50, and the loss halves."""
    found = [probe(version, seed, 2_400, "algo.replay_ratio=0.25") for seed in range(5)]
    assert np.median([auroc for auroc, _ in found]) >= 0.6 and min(auroc for auroc, _ in found) >= 0.5
    assert all(halved < 0.5 for _, halved in found)
