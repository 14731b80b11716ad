"""Checkpoints of ring buffers in chunks of rows, so that a checkpoint writes only chunks with new or changed rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from torch import Tensor

from rlcore.data.ring import Ring
from rlcore.data.sizes import PIECES
from rlcore.types import Chunk, State

Span = tuple[int, int]  # first row of a chunk, and the row after its last one


class ChunkedRing:
    """Ring buffer that divides its rows into chunks, so that consecutive checkpoints can share unchanged chunks.

    Args:
        ring: the ring buffer.
        part: number of rows of a chunk.
    """

    def __init__(self, ring: Ring, part: int) -> None:
        self.ring, self.part = ring, part
        self._chunks: dict[Span, Chunk] = {}
        self._changed = np.zeros(ring.slots, bool)  # rows overwritten by `change` since the last call of `state`

    def change(self, places: np.ndarray, columns: dict[str, Tensor]) -> None:
        """Overwrite N rows with `columns`, name -> [N, ...].

        `places` [N] are distinct integers t · B + b, for row number t and environment b. If a checkpoint already
        contains the chunk of a row, the next checkpoint writes this chunk again.
        """
        self.ring.put(places, columns)
        self._changed[places // self.ring.width % self.ring.slots] = True

    def state(self, oldest: int, end: int) -> State:
        """Return the rows `oldest` to `end` (inclusive) for a checkpoint, as two lists of chunks: `chunks` and `tail`.

        `chunks` has the full chunks, starting with the one that contains row `oldest`. `tail` has the rows after the
        last full chunk, divided into smaller pieces. The last piece contains the newest rows, and every checkpoint
        writes it. All other chunks and pieces are written again only if one of their rows has changed.
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
        """Load chunks that `state` returned, and yield the first row number and the columns of each chunk.

        `end` is the value that was passed to `state`: the number of the newest row.
        """
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
