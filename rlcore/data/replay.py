"""The off-policy buffer: the newest rows of every environment, and sequences drawn from them as often as owed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.data import dataset
from rlcore.data.arrivals import as_steps, columns
from rlcore.types import Batch, Buffer, Chunk, Context, State, Steps

if TYPE_CHECKING:
    from tensordict import TensorDict

PARTS = 32  # chunks in a full memory: a checkpoint writes the newest ones whole, and the rows of one that is not full


class Replay(Buffer):
    """A ring of rows [R, B, ...], of which every row is written once and the newest `size` may be drawn.

    Batches are chosen on the host, which knows which rows only reset: it never waits for a device that keeps the rows.

    Extras and carries are not kept: they are those of an older agent. The arrival that has not been answered yet waits
    in the row after the newest, so that the newest step can be drawn.

    Args:
        context: whose ranks share what is owed; its `replay` stream draws.
        size: rows of every environment that are remembered.
        batch_size: N, sequences in a batch.
        length: L, steps of a sequence.
        ratio: gradient steps owed for every policy step, those of all ranks together counted once; taken exactly.
        starts: policy steps before the first batch; none is owed for them.
        pretrain: gradient steps owed besides, with the first.
        transitions: none of a batch begins with a row that only resets; None = where they are of one step.
        device: where the rows are kept; batches go to the learner's.
    """

    def __init__(
        self,
        context: Context,
        *,
        size: int,
        batch_size: int,
        length: int = 1,
        ratio: float | Fraction = 1.0,
        starts: int = 0,
        pretrain: int = 0,
        transitions: bool | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if size <= length:
            raise ValueError(f"a memory of {size} rows holds no sequence of {length} steps and the arrival after it")
        self.size, self.batch_size, self.length, self.starts, self.pretrain = size, batch_size, length, starts, pretrain
        self.ratio, self.transitions = Fraction(str(ratio)), length == 1 if transitions is None else transitions
        self.device, self.target, self.ranks = torch.device(device), context.fabric.device, context.ranks
        self.rng = context.generator("replay")
        self.rows: dict[str, Tensor] = {}
        self._resets = np.zeros(0, bool)  # [R, B]: the step from the row only resets
        self.written = 0  # rows of every environment, of all time
        self.taken = 0  # batches handed out
        self._newest = 0  # policy steps of the last `extend`, of all ranks
        self._part = max(1, size // PARTS)  # rows of a chunk
        self._chunks: dict[int, Chunk] = {}

    @property
    def capacity(self) -> int:
        """Rows of every environment that there is room for; memory is taken as they come."""
        return self._room

    @property
    def _room(self) -> int:
        return self.size + self._part + 1  # a chunk whose first rows are no longer drawn is whole until it is let go

    @property
    def batch_rows(self) -> int:
        """Rows of one batch, its arrivals among them."""
        return self.batch_size * (self.length + 1)

    # Rows -------------------------------------------------------------------------------------------------------------

    def extend(self, steps: Steps, last: Steps) -> None:
        """Remember T rows [T, B, ...] and the arrival [B, ...] after them; the oldest ones make room."""
        count, width = steps.reward.shape
        for begin in range(0, count, self.size):
            self._write(_columns(steps, begin, begin + self.size))
        self._write(_columns(last, None, None))
        self.written -= 1  # it comes again, with its action
        self._newest = count * width * self.ranks.size

    def _write(self, columns: dict[str, Tensor]) -> None:
        count = len(columns["reward"])
        if not self.rows:
            self._make_room(columns)
        slots = self._slots(self.written, self.written + count)
        for key, rows in self.rows.items():
            rows[slots.to(self.device)] = columns[key].to(self.device)
        ended, opens = columns["terminated"] | columns["truncated"], columns["is_first"]
        self._resets[slots.numpy()] = ended.cpu().numpy()
        # Of rows from elsewhere, a dataset's say, the last before an episode opens need not have ended one.
        self._resets[(slots - 1).numpy() % self._room] |= opens.cpu().numpy()
        self.written += count

    def _make_room(self, columns: dict[str, Tensor]) -> None:
        for key, value in sorted(columns.items()):  # in the same order also when they come from a file
            self.rows[key] = torch.zeros((self._room, *value.shape[1:]), dtype=value.dtype, device=self.device)
        self._resets = np.zeros((self._room, columns["reward"].shape[1]), bool)

    def _slots(self, begin: int, end: int) -> Tensor:
        return torch.arange(begin, end) % self._room

    # Batches ----------------------------------------------------------------------------------------------------------

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """The batches owed after the newest rows, with `policy_steps` before these: [L, N] and the arrival [N]."""
        learned = policy_steps + self._newest - self.starts
        while learned > 0 and self.taken < int(self.ratio * learned) + self.pretrain and self.written >= self.length:
            self.taken += 1
            yield self._drawn(policy_steps)

    def _drawn(self, policy_steps: int) -> Batch:
        oldest, width = max(0, self.written - self.size), self.rows["reward"].shape[1]
        choices = self.written - self.length + 1 - oldest
        picked = self.rng.integers(0, choices * width, self.batch_size)
        if self.transitions:
            while (resets := self._resets[(oldest + picked // width) % self._room, picked % width]).any():
                picked[resets] = self.rng.integers(0, choices * width, int(resets.sum()))
        slots = (oldest + picked // width + np.arange(self.length + 1)[:, None]) % self._room
        places = _sent(torch.from_numpy((slots * width + picked % width).ravel()), self.device)
        shape = slots.shape  # one flat index for all columns: an eighth of the time that two take, row and environment
        drawn = {
            key: _sent(rows.flatten(0, 1).index_select(0, places).view(*shape, *rows.shape[2:]), self.target)
            for key, rows in self.rows.items()
        }
        return Batch(_steps(drawn, slice(0, self.length)), _steps(drawn, self.length), policy_steps)

    def remembered(self) -> TensorDict:
        """The rows that may be drawn, in order of time: `rlcore.data.dataset` [rows, B], a copy."""
        columns = self._between(max(0, self.written - self.size), self.written) if self.rows else {}
        return dataset.as_tensordict(_steps(columns, slice(None)))

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Counts, stream, the full chunks that are still drawn from, and one of the rows after them."""
        first, full = max(0, self.written - self.size) // self._part, self.written // self._part
        self._chunks = {
            n: self._chunks.get(n) or Chunk(functools.partial(self._between, n * self._part, (n + 1) * self._part))
            for n in range(first, full)
        }
        return {
            "written": self.written,
            "taken": self.taken,
            "part": self._part,
            "rng": streams.generator_state(self.rng),
            "chunks": list(self._chunks.values()),
            "tail": [self._held(full * self._part, self.written + 1)] if self.rows else [],
        }

    def _held(self, begin: int, end: int) -> Chunk:
        """Rows as they are now, in a file of their own: whoever wants the policy alone does not read it."""
        columns = self._between(begin, end)
        return Chunk(lambda: columns)

    def _between(self, begin: int, end: int) -> dict[str, Tensor]:
        slots = self._slots(begin, end).to(self.device)
        return {key: rows[slots] for key, rows in self.rows.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`, in chunks as long as its own: those of a shorter run may be of fewer rows."""
        self._part = state.get("part", self._part)
        full, chunks = state["written"] // self._part, state["chunks"]
        streams.load_generator_state(self.rng, state["rng"])
        # Chunks of this very memory are views of rows that are to be overwritten.
        columns = [chunk.columns() for chunk in chunks] if self.rows else (chunk.columns() for chunk in chunks)
        self.rows, self._chunks = {}, {}
        for n, chunk, held in zip(range(full - len(chunks), full), chunks, columns, strict=True):
            self.written = n * self._part
            self._write(held)
            self._chunks[n] = Chunk(
                functools.partial(self._between, n * self._part, (n + 1) * self._part), chunk.stored
            )
        self.written = full * self._part
        for chunk in state["tail"]:
            self._write(chunk.columns())
        self.written, self.taken = state["written"], state["taken"]


def _sent(value: Tensor, device: torch.device) -> Tensor:
    """On a device, without waiting for it; from pinned memory, which torch keeps until it has arrived."""
    if value.device.type == "cpu" and device.type == "cuda":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def _columns(steps: Steps, begin: int | None, end: int | None) -> dict[str, Tensor]:
    """Rows `begin` to `end` as one flat dict of [T, B, ...]; None = the one row [1, B, ...] of an arrival."""
    flat = columns(steps) | {"action": steps.action}
    return {key: value[None] if begin is None else value[begin:end] for key, value in flat.items()}


def _steps(drawn: dict[str, Tensor], where: Any) -> Steps:
    rows = {key: value[where] for key, value in drawn.items()}
    return as_steps(rows, rows["action"])
