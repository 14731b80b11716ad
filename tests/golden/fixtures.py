"""Golden values: reading of the files that `tests.golden.makers` writes, and comparisons with them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent


@functools.cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Return the content of `name`.npz."""
    with np.load(HERE / f"{name}.npz") as content:
        return dict(content)


def settings(name: str) -> dict[str, Any]:
    """Return the content of `name`_fixtures.json: hyperparameters and variants."""
    return json.loads((HERE / f"{name}_fixtures.json").read_text())


def part(content: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names have a prefix, by their names without it."""
    return {name.removeprefix(prefix): value for name, value in content.items() if name.startswith(prefix)}


def tensors(content: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in content.items()}


def check_state(module: torch.nn.Module, expected: dict[str, Tensor], within: float, what: str = "parameters") -> None:
    """Check that the state of a module has the expected keys, and values within an absolute tolerance."""
    state = module.state_dict()
    assert expected.keys() == state.keys(), expected.keys() ^ state.keys()
    gap = max((state[name].double() - value).abs().max().item() for name, value in expected.items())
    assert gap < within, f"{what} differ by {gap:.1e}"


def check_numbers(found: Mapping[str, Any], expected: Mapping[str, Any], within: float) -> None:
    """Check numbers by name within an absolute tolerance; names that only `found` has are ignored."""
    for name, value in expected.items():
        gap = abs(float(found[name]) - float(value))
        assert gap < within, (name, float(found[name]), float(value))
