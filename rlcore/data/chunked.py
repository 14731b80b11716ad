"""Rings in checkpoints: rows become chunks, each written once and again only where something in it has changed."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from rlcore.data.ring import Ring
from rlcore.data.sizes import PIECES
from rlcore.types import Chunk, State

Span = tuple[int, int]  # rows


class ChunkedRing:
    """A ring, and which of its rows lie in which chunk.

    Args:
        ring: of rows.
        part: rows of a chunk.
    """

    def __init__(self, ring: Ring, part: int) -> None:
        self.ring, self.part = ring, part
        self._chunks: dict[Span, Chunk] = {}
        self._changed = np.zeros(ring.slots, bool)  # since the last state

    def change(self, places: np.ndarray, columns: dict[str, Tensor]) -> None:
        """Overwrite rows at places [N], all different, that may lie in chunks."""
        self.ring.put(places, columns)
        self._changed[places // self.ring.width % self.ring.slots] = True

    def state(self, oldest: int, end: int) -> State:
        """Rows from `oldest` (and those before it in its chunk) to `end`, which is among them: `chunks`, `tail`.

        The last part of the tail is a copy of the newest rows; all others stay what they are from state to state.
        """
        full = end // self.part
        spans = [(n * self.part, (n + 1) * self.part) for n in range(oldest // self.part, full)]
        pieces = list(self._pieces(full * self.part, end))
        rest = self.ring.between(pieces[-1][1] if pieces else full * self.part, end + 1)
        self._chunks = {span: self._chunk(span) for span in (*spans, *pieces)}
        self._changed[:] = False
        chunks = [*self._chunks.values()]
        return {"chunks": chunks[: len(spans)], "tail": [*chunks[len(spans) :], Chunk(lambda: rest)]}

    def _pieces(self, begin: int, end: int) -> Iterator[Span]:
        step = max(1, self.part // PIECES)
        return ((at, at + step) for at in range(begin, end - step + 1, step))

    def _chunk(self, span: Span) -> Chunk:
        known = self._chunks.get(span)
        if known is not None and not self._changed[np.arange(*span) % self.ring.slots].any():
            return known
        return Chunk(functools.partial(self.ring.between, *span))

    def load(self, state: State, end: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Write the rows of a `state` that ended at `end`; gives the first row and the columns of each part."""
        full = end // self.part
        begin = (full - len(state["chunks"])) * self.part
        self._chunks = {}
        steps = {self.part, max(1, self.part // PIECES)}
        for chunk in (*state["chunks"], *state["tail"]):
            columns = chunk.columns()
            count = len(next(iter(columns.values())))
            self.ring.write(begin, count, columns, {})
            if count in steps and begin + count <= end:
                span = begin, begin + count
                self._chunks[span] = Chunk(functools.partial(self.ring.between, *span), chunk.stored)
            yield begin, columns
            begin += count
