"""Measurements and page of `benchmarks/exploration.py`."""

from __future__ import annotations

import numpy as np

from benchmarks.exploration import coverage, page


def test_coverage_counts_cells_of_positions_and_velocities() -> None:
    """Positions are divided at multiples of 0.5, velocities at multiples of 1/3; the last cells include the limits."""
    states = [[0.1, 0.1, 0.1, 0.1], [0.4, 0.4, 0.3, 0.3], [0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.4]]
    states += [[1.5, -1.5, 1.0, -1.0], [1.4, -1.4, 0.9, -0.9]]
    assert coverage(np.array(states)) == 4


def test_page_compares_with_thresholds() -> None:
    maze = {
        "1": [{"auroc": 0.7, "loss": 0.3}, {"auroc": 0.5, "loss": 0.4}, {"auroc": 0.6, "loss": 0.2}],
        "3_5": [{"auroc": 0.9, "loss": 0.3}, {"auroc": 0.8, "loss": 0.5}],
    }
    returns = {"tuned": 30.0, "scratch": 20.0}
    runs = [{"explored": cells, "random": 300} | returns for cells in (400, 500, 350, 310, 299)]
    rows = [line for line in page({"disagreement": maze, "runs": runs}).splitlines() if line.startswith("|")]
    assert "| V1 | 3 | 0.60 | 0.70, 0.50, 0.60 | 0.30, 0.40, 0.20 | yes |" in rows
    assert "| V3.5 | 2 | 0.85 | 0.90, 0.80 | 0.30, 0.50 | no |" in rows
    cells, tuned = rows[-2:]
    assert "| 371.8 (" in cells and cells.endswith("| 4 of 5 (reached: 80%) |")
    assert "| 10.0 (10.0 to 10.0) | 5 of 5 |" in tuned
