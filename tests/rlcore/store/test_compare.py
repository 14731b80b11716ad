"""Comparison of checkpoints to the bit, with the name of each difference."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.store import checkpoint
from rlcore.store.compare import Difference, common, differences, tensor_digests, tensor_names
from rlcore.types import Chunk

STATE = {
    "weights": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "envs": {"0": np.array([1, 2], np.int64)},
    "rng": {"state": 2**100 + 1},
    "list": [1, 2.5, None],
}


def save(folder: Path, state: dict[str, Any], policy_steps: int = 8) -> Path:
    return checkpoint.save(folder, policy_steps, state, {"time": str(folder)})


def compare(tmp_path: Path, changed: dict[str, Any]) -> list[Difference]:
    return list(differences(save(tmp_path / "a", STATE), save(tmp_path / "b", STATE | changed)))


def test_differences_ignore_bookkeeping(tmp_path: Path) -> None:
    assert compare(tmp_path, {}) == []


def test_differences_name_entry_and_index_of_bit(tmp_path: Path) -> None:
    weights = STATE["weights"].clone()
    weights.view(torch.int32)[1, 2] ^= 1
    (difference,) = compare(tmp_path, {"weights": weights})
    assert (difference.entry, difference.index) == ("weights", (1, 2))
    assert difference.largest == pytest.approx(2**-21)  # the last bit of a float32 in [4, 8)
    assert "weights[1, 2]" in str(difference)


def test_differences_distinguish_negative_zero_but_not_nan(tmp_path: Path) -> None:
    special = {"weights": torch.tensor([0.0, float("nan")])}
    first = save(tmp_path / "a", STATE | special)
    assert list(differences(first, save(tmp_path / "b", STATE | special))) == []
    (difference,) = differences(first, save(tmp_path / "c", STATE | {"weights": torch.tensor([-0.0, float("nan")])}))
    assert difference.index == (0,)


@pytest.mark.parametrize(
    ("changed", "entry"),
    [
        ({"rng": {"state": 2**100 + 2}}, "rng/state"),
        ({"list": [1, 2.5]}, "list/length"),
        ({"list": [1, 2, None]}, "list/1"),
        ({"envs": {"0": np.array([1, 2], np.int32)}}, "envs/0"),
        ({"extra": 1}, "extra"),
    ],
)
def test_differences_compare_every_kind_of_entry(tmp_path: Path, changed: dict[str, Any], entry: str) -> None:
    assert compare(tmp_path, changed)[0].entry == entry


def make_run(folder: Path, *steps: int) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    for policy_steps in steps:
        save(folder / "checkpoints", STATE, policy_steps)
    return folder


def test_common_chooses_newest_common_step(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a", 8, 16, 24), make_run(tmp_path / "b", 8, 16)
    assert [path.name for path in common(first, second)] == ["16", "16"]
    assert [path.name for path in common(first, second / "checkpoints/8")] == ["8", "8"]


def test_common_refuses_runs_without_common_step(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="no undamaged checkpoints at the same number .* first has 16, 8, the second 32, 24"
    ):
        common(make_run(tmp_path / "a", 8, 16), make_run(tmp_path / "b", 24, 32))


def test_tensor_digests_depend_on_bits_type_and_shape(tmp_path: Path) -> None:
    state = STATE | {
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "flags": (np.array([True, False]), torch.ones((), dtype=torch.int64).expand(3)),
        "none": torch.zeros(0, 4),
        "replay": [Chunk(lambda: {"a": torch.ones(4), "b": torch.zeros(3)}), Chunk(lambda: {"a": torch.zeros(2)})],
    }
    names = ["weights", "envs/0", "half", "flags/0", "flags/1", "none", "replay/0", "replay/1"]
    digests = tensor_digests(state)
    assert tensor_names(state) == names
    assert len(digests) == 8 * len(names)
    loaded, _ = checkpoint.load(save(tmp_path, state))
    assert (tensor_digests(loaded), tensor_names(loaded)) == (digests, names)

    def changed(**entries: Any) -> list[str]:
        other = tensor_digests(state | entries)
        return [name for i, name in enumerate(names) if other[8 * i : 8 * i + 8] != digests[8 * i : 8 * i + 8]]

    assert changed(half=torch.tensor([1.5, 0.0], dtype=torch.bfloat16)) == ["half"]
    assert changed(weights=STATE["weights"].reshape(3, 2)) == ["weights"]
    assert changed(envs={"0": np.array([1, 2], np.uint64)}) == ["envs/0"]
    assert changed(rng={"state": 7}) == []
    (_, second), one = state["replay"], Chunk(lambda: {"a": torch.ones(4), "b": torch.zeros(3).neg()})
    assert changed(replay=[one, second]) == ["replay/0"]
    # SHA-256 of the type and shape as text and of the little-endian bytes, by hand.
    expected = hashlib.sha256(b"torch.int64 [2] " + bytes([1, *[0] * 7, 2, *[0] * 7])).hexdigest()[:8]
    assert digests[8:16] == expected
