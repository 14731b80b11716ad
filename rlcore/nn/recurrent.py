"""Recurrent cells (LSTM and GRU) that process sequences and reset their state at the start of an episode.

The state of a cell is called carry. A row is one time step of a sequence.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlcore.functional.scan import scan
from rlcore.nn.mlp import initialise

CellState = dict[str, Tensor]  # name -> [M, H]


class Cell(nn.Module):
    """Base class of recurrent cells that process sequences of rows (time steps).

    The inputs of all rows are multiplied by the gates' weights in one operation, before the loop over rows. Weights and
    biases are initialized uniformly in ±1/√H, as in PyTorch's cells.

    Args:
        inputs: F; number of input features.
        size: H; size of the output and of each tensor in the carry (recurrent state).
        rng: CPU generator for the initialization.

    Attributes:
        gates: G; number of gates.
        carried: names of the tensors in the carry. The tensor `h` is also the output of the cell.
    """

    gates: ClassVar[int]
    carried: ClassVar[tuple[str, ...]]

    def __init__(self, inputs: int, size: int, rng: torch.Generator) -> None:
        super().__init__()
        self.output_size = size
        with torch.random.fork_rng(devices=[]):  # the initial weights are replaced below
            input_proj, carry_proj = (nn.Linear(width, self.gates * size, device="cpu") for width in (inputs, size))
        self.input_proj, self.carry_proj = (initialise(layer, size, rng, None) for layer in (input_proj, carry_proj))

    def initial(self, batch_size: int) -> CellState:
        """Return the initial carry (recurrent state), name -> [B, H]; all values are zero."""
        return {name: torch.zeros(batch_size, self.output_size) for name in self.carried}

    def forward(self, x: Tensor, forget: Tensor, carry: CellState) -> tuple[Tensor, CellState]:
        """Process M sequences of L rows (time steps).

        Args:
            x: [L·M, F]; inputs, flattened in the order [L, M].
            forget: [L·M] bool; True for rows before which the carry (recurrent state) is reset to 0.
            carry: name -> [M, H]; carry before the first row of each sequence.

        Returns:
            Outputs after each row, [L·M, H], and the carry after the last row of each sequence.
        """
        count = carry["h"].shape[0]
        rows = self.input_proj(x.to(self.input_proj.weight.dtype)).to(x.dtype)
        xs = {"row": rows.unflatten(0, (-1, count)), "forget": forget.unflatten(0, (-1, count)).unsqueeze(-1)}
        carry, h = scan(self._step, carry, xs, dict(self.carry_proj.named_parameters()))
        return h.flatten(0, 1), carry

    def _step(self, carry: CellState, xs: dict[str, Tensor], params: dict[str, Tensor]) -> tuple[CellState, Tensor]:
        carry = {name: part.masked_fill(xs["forget"], 0) for name, part in carry.items()}
        h = carry["h"]
        before = functional.linear(h.to(params["weight"].dtype), params["weight"], params["bias"]).to(h.dtype)
        carry = self.cell_update(carry, xs["row"], before)
        return carry, carry["h"]

    @staticmethod
    def cell_update(carry: CellState, row: Tensor, before: Tensor) -> CellState:
        """Compute one time step of M sequences.

        Args:
            carry: name -> [M, H]; recurrent state before the time step.
            row: [M, G·H]; input of the time step, multiplied by the input weights of the G gates.
            before: [M, G·H]; `h` of the carry, multiplied by the recurrent weights of the gates.

        Returns:
            Recurrent state after the time step, name -> [M, H].
        """
        raise NotImplementedError


class LSTM(Cell):
    """Long short-term memory, with a forget gate (Gers, Schmidhuber and Cummins 2000)."""

    gates, carried = 4, ("h", "c")

    @staticmethod
    def cell_update(carry: CellState, row: Tensor, before: Tensor) -> CellState:
        """Compute one time step: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c').

        i, f, g and o are the four parts [M, H] of `row + before`. The carry consists of h and c [M, H].
        """
        i, f, g, o = (row + before).chunk(4, -1)
        c = f.sigmoid() * carry["c"] + i.sigmoid() * g.tanh()
        return {"h": o.sigmoid() * c.tanh(), "c": c}


class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014).

    As in cuDNN and PyTorch, the reset gate is applied after the multiplication of h by the recurrent weights. In the
    paper, it is applied before that multiplication.
    """

    gates, carried = 3, ("h",)

    @staticmethod
    def cell_update(carry: CellState, row: Tensor, before: Tensor) -> CellState:
        """Compute one time step: h' = (1 - σ(z + z_h)) tanh(n + σ(r + r_h) n_h) + σ(z + z_h) h.

        r, z and n are the three parts [M, H] of `row`; r_h, z_h and n_h are those of `before`. The carry consists of
        h [M, H].
        """
        (r, z, n), (r_h, z_h, n_h) = row.chunk(3, -1), before.chunk(3, -1)
        new = (n + (r + r_h).sigmoid() * n_h).tanh()
        return {"h": torch.lerp(new, carry["h"], (z + z_h).sigmoid())}


CELLS: dict[str, Any] = {"lstm": LSTM, "gru": GRU}
