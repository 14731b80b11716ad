"""The off-policy buffer: the newest rows of every environment, and batches drawn from them as often as owed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.data import dataset
from rlcore.data.arrivals import as_steps, columns
from rlcore.data.chunked import ChunkedRing
from rlcore.data.episodes import EpisodeIndex, WholeEpisodes
from rlcore.data.gathered import gather_batches
from rlcore.data.ring import HostRing, form_bytes, form_of, make_ring, to_device
from rlcore.data.samplers import Position, Sampler
from rlcore.data.sizes import chunk_rows, row_bytes
from rlcore.data.table import Form, scratch_folder
from rlcore.errors import RunError
from rlcore.functional import tree
from rlcore.protocols import Buffer
from rlcore.spec import ArraySpec
from rlcore.types import Batch, Carry, Context, Metrics, State, Steps

if TYPE_CHECKING:
    from tensordict import TensorDict

ENDS = ("terminated", "truncated", "is_first")
NONE = np.zeros((0, 1), bool)
AT_ONCE = 1 << 20  # bytes of the batches that are drawn together


class Replay(Buffer):
    """A ring of rows, of which every one is written once and the newest `size` may be drawn.

    Batches are chosen on the host, which knows which rows only reset: it never waits for a device that keeps the rows.
    Those that are due are drawn together, up to a megabyte. The arrival that has not been answered yet is written into
    the row after the newest once something is drawn or saved, so that the newest step is among it.

    Of what the agent said, and of its carry, rows have what is named here: it is that of an older agent. What was said
    may be written back. Both must be of known form: random actions come without.

    With `buffer.memmap`, rows lie in files that are gone when the process ends; chunks of checkpoints stay the truth.

    Args:
        context: whose ranks share what is owed, whose environments' rows these are; its `replay` stream draws.
        sampler: where sequences begin, and of how many steps (L) they are.
        size: rows of every environment that are remembered.
        batch_size: N, sequences in a batch.
        ratio: gradient steps owed for every policy step, those of all ranks together counted once; taken exactly.
        starts: policy steps before the first batch; none is owed for them.
        pretrain: gradient steps owed besides, with the first.
        every: policy steps between two trainings, in which all batches owed by then are handed out; their number is the
            same with any.
        end: policy steps of the whole run, after which nothing stays owed.
        online: batches begin with the sequences that are new, each of them once, the oldest first; the rest is drawn.
        before: rows that come along in front of each sequence, `Steps.past`; as far back as a history reaches.
        extras: name -> form of one row of what the agent says beside its action, where rows are to have it.
        carry: `agent.initial(1)`, where every sequence is to come with the carry before it; rollouts are then of one
            row. Rows that the agent has not seen, as of a dataset, have this one.
        device: where the rows are kept; batches go to the learner's.
    """

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        *,
        size: int,
        batch_size: int,
        ratio: float | Fraction = 1.0,
        starts: int = 0,
        pretrain: int = 0,
        every: int = 1,
        end: int | None = None,
        online: bool = False,
        before: int = 0,
        extras: Mapping[str, ArraySpec] | None = None,
        carry: Carry = (),
        device: torch.device | str = "cpu",
    ) -> None:
        if size <= (length := sampler.length):
            raise ValueError(f"a memory of {size} rows holds no sequence of {length} steps and the arrival after it")
        self.sampler, self.size, self.batch_size, self.before = sampler, size, batch_size, before
        self.ratio, self.starts, self.pretrain = Fraction(str(ratio)), starts, pretrain
        self.every, self.end, self.online = every, end, online
        self.device, self.target, self.ranks = torch.device(device), context.fabric.device, context.ranks
        self.rng, self.width = context.generator("replay"), context.num_envs
        # Rows of every environment in the whole run; None where nobody knows, as with those of a dataset before them.
        whole = end if context.config.buffer.load_from is None else None
        self._rows = None if whole is None else whole // (self.width * self.ranks.size)
        self._files = context.config if context.config.buffer.memmap and self.device.type == "cpu" else None
        self._carry, fresh = carry, tree.name_leaves(carry)
        self._fresh = {name: value[0].cpu() for name, value in fresh.items()}
        said = {name: (part.shape, getattr(torch, part.dtype)) for name, part in (extras or {}).items()}
        self._forms: dict[str, Form] = {"said": said, "carry": form_of(fresh, 1)}  # beside that of the given
        self.row_bytes = row_bytes(context.spec) + sum(map(form_bytes, self._forms.values()))
        self.chunk_rows = chunk_rows(size, self.width * self.row_bytes)
        self._at_once = max(1, AT_ONCE // (self.batch_rows * self.row_bytes))  # batches
        self._rings: dict[str, ChunkedRing] = {}
        self._resets = np.zeros(0, bool)  # [slots, B]: the step from the row only resets
        self._flags: list[np.ndarray] = []  # [slots, B] of rows on the host, by which that is known
        self._offsets = np.arange(-before, length + 1)[:, None] * self.width  # of a sequence's places
        self.written = 0  # rows of every environment, of all time
        self.taken = 0  # batches handed out
        self._last: Steps | None = None  # the arrival after the newest rows, until it is written
        self._newest = 0  # policy steps of the last `extend`, of all ranks
        self._steps_seen = 0  # policy steps, of all ranks
        self._queue: Position = ()  # of what is new
        self._episodes = EpisodeIndex(self.width)

    @property
    def capacity(self) -> int:
        """Rows of every environment that there is room for, no more than a run brings; memory is taken as they come."""
        return self._slots

    @property
    def _slots(self) -> int:
        # A chunk whose first rows are no longer drawn is whole until it is let go.
        most = self.size + self.before + self.chunk_rows + 1
        return most if self._rows is None else min(most, self._rows + self.before + 2)

    @property
    def batch_rows(self) -> int:
        """Rows of one batch, its arrivals and what comes before it among them."""
        return self.batch_size * (self.before + self.sampler.length + 1)

    @property
    def learned_rows(self) -> int:
        """Rows of one batch that are learned from."""
        return self.batch_size * self.sampler.length

    @property
    def in_files(self) -> bool:
        """Rows lie on the disk."""
        return self._files is not None

    @property
    def oldest(self) -> int:
        """The first row that may be drawn, counted from the first of all time."""
        return max(0, self.written - self.size)

    @property
    def collected(self) -> int:
        """The first row that was collected in this run: those before it are of a dataset."""
        return self.written - self._steps_seen // (self.width * self.ranks.size)

    # Rows -------------------------------------------------------------------------------------------------------------

    def extend(self, steps: Steps, last: Steps) -> None:
        """Remember T rows [T, B, ...] and the arrival [B, ...] after them; the oldest ones make room.

        The arrival is not copied: it is to stay what it is until the next call.

        A ValueError where carries are kept and T is not 1: a rollout brings the one before its first row.
        """
        count, given = len(steps.reward), self._columns(steps)
        self._newest = count * self.width * self.ranks.size
        if given["carry"] and count != 1:
            raise ValueError("a memory that keeps carries takes rollouts of one row")
        if count <= self.size:
            self._write(self.written, count, given)
        else:
            for begin in range(0, count, self.size):
                part = {k: {n: v[begin : begin + self.size] for n, v in c.items()} for k, c in given.items()}
                self._write(self.written + begin, min(self.size, count - begin), part)
        self.written += count
        self._last = last  # most often it comes again, with its action, before anything is drawn

    def _write_last(self) -> None:
        """Write the arrival after the newest rows, without which nothing is drawn."""
        if self._last is not None:
            self._write(self.written, 1, self._columns(self._last))
            self._last = None

    def _columns(self, steps: Steps) -> dict[str, dict[str, Tensor]]:
        said = {name: steps.extras[name] for name in self._forms["said"]} if steps.extras else {}
        carry = tree.name_leaves(steps.carry) if self._forms["carry"] else {}
        return {"given": columns(steps) | {"action": steps.action}, "said": said, "carry": carry}

    def _write(self, row: int, count: int, given: Mapping[str, Mapping[str, Tensor]]) -> None:
        if not self._rings:
            self._make_room(form_of(given["given"], given["given"]["reward"].ndim))
        for name, ring in self._rings.items():
            ring.ring.write(row, count, given[name], self._fresh)
        self._note_resets(row, count, given["given"])

    def _note_resets(self, row: int, count: int, given: Mapping[str, Tensor]) -> None:
        begin = row % len(self._resets)
        # Of rows from elsewhere, a dataset's say, the last before an episode opens need not have ended one.
        if count == 1 and self._flags:  # which were just written there
            terminated, truncated, opens = self._flags
            np.logical_or(terminated[begin], truncated[begin], out=self._resets[begin])
            self._resets[begin - 1] |= opens[begin]
            return
        ended, opens = (given["terminated"] | given["truncated"]).cpu().numpy(), given["is_first"].cpu().numpy()
        if count == 1:
            self._resets[begin] = ended
            self._resets[begin - 1] |= opens[-1] if opens.ndim == 2 else opens
        else:
            slots = np.arange(begin, begin + count) % len(self._resets)
            self._resets[slots] = ended
            self._resets[slots - 1] |= opens

    def _make_room(self, given: Form) -> None:
        folder = None if self._files is None else scratch_folder(self._files)
        forms = {"given": given, **{name: form for name, form in self._forms.items() if form}}
        self._rings = {
            name: ChunkedRing(make_ring(form, self._slots, self.width, self.device, folder), self.chunk_rows)
            for name, form in forms.items()
        }
        self._resets = np.zeros((self._slots, self.width), bool)
        ring = self._rings["given"].ring
        self._flags = [ring.column(name) for name in ENDS] if isinstance(ring, HostRing) else []

    def write_back(self, places: np.ndarray, extras: Mapping[str, Tensor]) -> None:
        """Replace what the agent said in rows of a batch, unless they have been overwritten since.

        Args:
            places: `Batch.places` [L, N]; of a row that is there twice, the last counts.
            extras: name -> [L, N, ...]; a ValueError where the memory's `extras` lack one.
        """
        known = self._forms["said"].keys()
        if unknown := extras.keys() - known:
            raise ValueError(
                f"{', '.join(sorted(unknown))}: rows have no such extras, only {', '.join(known) or 'none'}"
            )
        flat = places.ravel()
        rows, newest = np.unique(flat[::-1], return_index=True)
        there = rows >= self.oldest * self.width
        index = torch.from_numpy(flat.size - 1 - newest[there])
        said = {name: value.detach().flatten(0, 1) for name, value in extras.items()}
        values = {name: value[to_device(index, value.device)] for name, value in said.items()}
        self._rings["said"].change(rows[there], values)

    # Batches ----------------------------------------------------------------------------------------------------------

    def batches(self, policy_steps: int) -> Iterator[Batch]:
        """The batches owed after the newest rows, with `policy_steps` before these: [L, N] and the arrival [N].

        Some are drawn ahead of the one that is handed out, and show what was written back before that.
        """
        self._steps_seen = policy_steps + self._newest
        owed = self.count_batches(self._steps_seen) - self.taken
        if self._steps_seen == self.end and owed > 0 and not self.sampler.can_draw(self):
            raise RunError(
                f"{owed} gradient steps are owed at the end of the run, and the memory has no sequence of "
                f"{self.sampler.length} rows; let the run be longer, the memory larger, or sequences shorter"
            )
        while (due := self.due(policy_steps)) > 0:
            for batch in self._draw(min(due, self._at_once), policy_steps):
                self.taken += 1
                yield batch

    def due(self, policy_steps: int) -> int:
        """Batches that are to be taken after the newest rows, with `policy_steps` before these."""
        now = policy_steps + self._newest
        trains = now // self.every > policy_steps // self.every or now == self.end
        owed = self.count_batches(now) - self.taken
        if not trains or owed <= 0:
            return 0
        self._write_last()
        return owed if self.sampler.can_draw(self) else 0

    def count_batches(self, policy_steps: int) -> int:
        """Batches owed for so many policy steps of a whole run."""
        learned = policy_steps - self.starts
        # Whole numbers: a product of fractions looks for common divisors, a tenth of a draw's time.
        return self.ratio.numerator * learned // self.ratio.denominator + self.pretrain if learned > 0 else 0

    def episodes(self) -> WholeEpisodes:
        """Whole episodes among the rows that may be drawn."""
        begin = self._episodes.next_row(self.oldest)
        ended = self._resets[np.arange(begin, self.written) % len(self._resets)] if begin < self.written else NONE
        return self._episodes.find(ended, self.oldest)

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Places [N] -> [N] bool: the step from there opens the next episode, so that nobody took it."""
        return self._resets.ravel()[places % self._resets.size]

    def _draw(self, count: int, policy_steps: int) -> Iterator[Batch]:
        # One after the other: what is drawn does not depend on how many are drawn together.
        begins = np.empty((count, self.batch_size), np.int64)
        for row in begins:
            new = 0
            if self.online:
                fresh, self._queue = self.sampler.queue(self, self._queue, self.batch_size)
                new = len(fresh)
                row[:new] = fresh
            if new < self.batch_size:
                row[new:] = self.sampler.draw(self, self.batch_size - new, self.rng)
        rings = {name: ring.ring for name, ring in self._rings.items()}
        first = (self.oldest - self.before) * self.width
        for steps, last, places in gather_batches(rings, begins, first, self._offsets, self.before, self.target):
            if self._fresh:
                steps.carry = tree.rebuild(self._carry, iter([steps.carry[name] for name in self._fresh]))
            else:
                steps.carry = self._carry
            back = functools.partial(self.write_back, places)
            yield Batch(steps, last, policy_steps, places, back)

    def metrics(self) -> Metrics:
        """Gradient steps of all ranks for each policy step so far."""
        taken = self.taken * self.ranks.size
        return {"Params/replay_ratio": taken / self._steps_seen} if self._steps_seen else {}

    def copy_rows(self) -> TensorDict:
        """The rows that may be drawn, in order of time: `rlcore.data.dataset` [rows, B], a copy."""
        rows = {name: ring.ring.between(self.oldest, self.written) for name, ring in self._rings.items()}
        steps = as_steps(rows["given"], rows["given"]["action"])
        steps.extras = rows.get("said", {})
        return dataset.as_tensordict(steps)

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Counts, stream, and the rows that are still drawn from, in chunks."""
        self._write_last()
        first = max(0, self.oldest - self.before)
        rows = {name: ring.state(first, self.written) for name, ring in self._rings.items()}
        counts = {"written": self.written, "taken": self.taken, "part": self.chunk_rows}
        given, rng = rows.pop("given", {"chunks": [], "tail": []}), streams.generator_state(self.rng)
        queue = {"queue": [*self._queue]} if self.online else {}
        return counts | {"rng": rng} | queue | given | rows

    def load_state_dict(self, state: State) -> None:
        """Continue from a `state_dict`, in chunks as long as its own: those of a shorter run may be of fewer rows."""
        self.chunk_rows = state.get("part", self.chunk_rows)
        streams.load_generator_state(self.rng, state["rng"])
        self.written, self.taken, self._rings, self._last = state["written"], state["taken"], {}, None
        self._queue, self._episodes = tuple(state.get("queue", ())), EpisodeIndex(self.width)
        if not state["tail"]:
            return
        self._make_room(form_of(state["tail"][-1].columns(), 2))
        for name in self._rings.keys() & state.keys():
            for _ in self._rings[name].load(state[name], self.written):
                pass
        for row, rows in self._rings["given"].load(state, self.written):
            self._note_resets(row, len(rows["reward"]), rows)
