"""Recurrent cells compared with the cells of torch, stepped by hand, and their resets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlcore.nn.recurrent import CELLS, Cell

LENGTH, COUNT, INPUTS, SIZE = 6, 4, 3, 5
TORCHS: dict[str, Any] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


def pair(kind: str) -> tuple[Cell, Any]:
    """Return our cell and that of torch with the same weights in float64."""
    ours = CELLS[kind](INPUTS, SIZE, torch.Generator().manual_seed(1)).double()
    theirs = TORCHS[kind](INPUTS, SIZE).double()
    state = ours.state_dict()
    names = {"weight_ih": "input_proj.weight", "weight_hh": "carry_proj.weight"}
    names |= {"bias_ih": "input_proj.bias", "bias_hh": "carry_proj.bias"}
    theirs.load_state_dict({name: state[own] for name, own in names.items()})
    return ours, theirs


def random_inputs(seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(LENGTH, COUNT, INPUTS, generator=rng, dtype=torch.float64)
    return x, {name: torch.randn(COUNT, SIZE, generator=rng, dtype=torch.float64) for name in ("h", "c")}


@pytest.mark.parametrize("kind", CELLS)
def test_cell_matches_torch_with_resets(kind: str) -> None:
    ours, theirs = pair(kind)
    x, carry = random_inputs()
    carry = {name: carry[name] for name in ours.carried}
    forget = torch.zeros(LENGTH, COUNT, dtype=torch.bool)
    forget[0, 1] = forget[3, 2] = forget[5, 0] = True
    state, expected = tuple(carry.values()), []
    for t in range(LENGTH):
        state = tuple(part * ~forget[t, :, None] for part in state)
        after = theirs(x[t], state if kind == "lstm" else state[0])
        state = after if kind == "lstm" else (after,)
        expected.append(state[0])
    h, after = ours(x.flatten(0, 1), forget.flatten(), carry)
    torch.testing.assert_close(h, torch.cat(expected), rtol=0, atol=1e-14)
    torch.testing.assert_close(tuple(after.values()), state, rtol=0, atol=1e-14)
    assert list(after) == list(ours.initial(2)) == list(ours.carried)


@pytest.mark.parametrize("kind", CELLS)
def test_cell_ignores_nan_state_at_reset(kind: str) -> None:
    ours, _ = pair(kind)
    x, carry = random_inputs()
    forget = torch.zeros(LENGTH, COUNT, dtype=torch.bool)
    forget[2] = True
    spoiled = {name: torch.full_like(carry[name], torch.nan) for name in ours.carried}
    found, _ = ours(x.flatten(0, 1), forget.flatten(), spoiled)
    empty = {name: part.double() for name, part in ours.initial(COUNT).items()}
    alone, _ = ours(x[2:].flatten(0, 1), forget[2:].flatten(), empty)
    assert torch.equal(found[2 * COUNT :], alone)


@pytest.mark.parametrize("kind", CELLS)
def test_cell_weights_have_torch_range_and_given_generator(kind: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same, other = (CELLS[kind](INPUTS, 64, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)
        assert 0.9 / 8 < a.abs().max() <= 1 / 8  # ±1/√64
