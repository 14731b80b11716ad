from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.evaluation.observations import join_keys, to_batch
from rlcore.spec import ArraySpec

SPECS = {"arm.angle": ArraySpec((2,), "float32"), "room": ArraySpec((), "int64", n=4, start=1)}


def test_join_keys_flattens_nested_dicts() -> None:
    nested = {"arm": {"angle": 1, "joint": {"speed": 2}}, "room": 3, "leg.angle": 4}
    assert join_keys(nested) == {"arm.angle": 1, "arm.joint.speed": 2, "room": 3, "leg.angle": 4}
    assert join_keys([1, 2]) == [1, 2]


def test_to_batch_adds_batch_dimension_to_single_observation() -> None:
    batch, single = to_batch({"arm.angle": [0.5, 1], "room": 4}, SPECS)
    assert single and batch["arm.angle"].tolist() == [[0.5, 1.0]] and batch["room"].tolist() == [4]
    assert batch["arm.angle"].dtype == torch.float32 and batch["room"].dtype == torch.int64
    batch, single = to_batch({"arm.angle": np.ones((3, 2)), "room": np.ones(3)}, SPECS)
    assert not single and batch["arm.angle"].shape == (3, 2) and batch["room"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"room": [1]}, "some keys have a batch dimension and others have none"),
        ({"arm.angle": [[0, 1], [2]]}, r"'arm.angle': expected shape \(2,\), got lists of different lengths"),
        (
            {"arm.angle": [[0, 1]], "room": [1, 2]},
            "different numbers of observations: 'arm.angle' has 1, 'room' has 2; pass the same number for all",
        ),
    ],
)
def test_to_batch_refuses_inconsistent_observations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_batch({"arm.angle": [0, 1], "room": 1} | change, SPECS)
