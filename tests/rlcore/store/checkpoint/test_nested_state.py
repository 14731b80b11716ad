from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import UserError
from rlcore.store.checkpoint import nested_state


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_equal, a, b))
    return type(a) is type(b) and a == b


STATE = {
    "weights": {"0.bias": torch.randn(3), "half": torch.randn(2, 2).bfloat16(), "flag": torch.tensor([True, False])},
    "moments": {0: {"step": torch.tensor(3.0), "exp": torch.zeros(0, dtype=torch.float64)}, 1: {}},
    "arrays": [np.arange(6, dtype=np.uint8).reshape(2, 3), np.array(2.5), np.array([True])],
    "rng": {"state": 2**127 + 1, "name": "PCG64"},
    "odd": {"a/b": 1, "a": {"b": torch.tensor([2.0])}, "tensor": "not a tensor", "items": [], "": None},
    "plain": [1, 1.5, True, None, "x", (1, 2), -0.0],
}


def test_decode_inverts_encode_with_tuples_as_lists() -> None:
    assert is_equal(STATE, nested_state.decode(*nested_state.encode(STATE)))


def test_encode_keeps_floats_exactly() -> None:
    values = [0.1 + 0.2, 1e-310, 1.7976931348623157e308]
    assert nested_state.decode(*nested_state.encode(values)) == values


def test_encode_distinguishes_keys_with_slashes() -> None:
    state = {"a/b": torch.tensor([1.0]), "a": {"b": torch.tensor([2.0])}}
    decoded = nested_state.decode(*nested_state.encode(state))
    assert decoded["a/b"].item() == 1 and decoded["a"]["b"].item() == 2


def test_encode_distinguishes_integer_and_text_keys() -> None:
    decoded = nested_state.decode(*nested_state.encode({0: torch.tensor([1.0]), "0": torch.tensor([2.0])}))
    assert decoded[0].item() == 1 and decoded["0"].item() == 2


def test_encode_stores_views_by_value() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"whole": base, "turned": base.T, "row": base[1], "array": np.asfortranarray(np.ones((2, 3)))}
    assert is_equal(state, nested_state.decode(*nested_state.encode(state)))


def test_decoded_state_shares_no_memory_with_input() -> None:
    tensor = torch.ones(2)
    decoded = nested_state.decode(*nested_state.encode([tensor]))
    tensor += 1
    assert decoded[0].tolist() == [1, 1]


def test_encode_is_deterministic() -> None:
    assert nested_state.encode(STATE) == nested_state.encode(STATE)


@pytest.mark.parametrize("wrong", [{"f": print}, {"s": {1, 2}}, [object()]])
def test_encode_refuses_other_types_with_path(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"/[fs0]: a .* cannot be stored in a checkpoint"):
        nested_state.encode(wrong)


def test_encode_refuses_keys_of_other_types() -> None:
    with pytest.raises(TypeError, match="a tuple cannot be a key in a checkpoint"):
        nested_state.encode({(1, 2): 3})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (b'{"items": [["w", {"tensor": "/w"}]]', "shape.json is not valid JSON"),
        (b"[" * 100_000, "shape.json is not valid JSON"),
        (b'{"items": [["w", {"tensor": "/v"}]]}', "shape.json is not the state of a checkpoint"),
        (b'{"items": [["w", {"object": "/w"}]]}', "shape.json is not the state of a checkpoint"),
        (
            b'{"items": [["v", {"tensor": "/w"}], ["w", {"tensor": "/w"}]]}',
            "shape.json is not the state of a checkpoint",
        ),
        (b'{"items": []}', "numbers.safetensors contains tensors that shape.json does not refer to"),
    ],
)
def test_decode_refuses_invalid_shape_file(shape: bytes, message: str) -> None:
    _, numbers = nested_state.encode({"w": torch.ones(2)})
    with pytest.raises(UserError, match=message):
        nested_state.decode(shape, numbers, ("shape.json", "numbers.safetensors"))


def test_decode_refuses_invalid_tensor_file() -> None:
    shape, numbers = nested_state.encode({"w": torch.ones(2)})
    for wrong in (b"", numbers[:-1], numbers + b"x", bytes(len(numbers)), b"\xff" * 8 + numbers):
        with pytest.raises(UserError, match="numbers.safetensors is not a valid safetensors file"):
            nested_state.decode(shape, wrong, ("shape.json", "numbers.safetensors"))
