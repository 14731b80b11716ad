"""Replay buffer, which also determines how many gradient steps are taken per policy step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.config.run import AlgorithmConfig
from rlcore.data.chunked import ChunkedRing
from rlcore.data.episodes import EpisodeIndex, WholeEpisodes
from rlcore.data.gathered import gather_batches
from rlcore.data.ring import HostRing, form_bytes, form_of, make_ring, to_device
from rlcore.data.samplers import Position, Sampler
from rlcore.data.sizes import chunk_rows, row_bytes
from rlcore.data.staging import as_trajectory, columns
from rlcore.data.table import Form, scratch_folder
from rlcore.errors import RunError, UserError
from rlcore.functional import tree
from rlcore.protocols import Buffer
from rlcore.spec import ArraySpec
from rlcore.types import Batch, Carry, Context, Metrics, State, Trajectory

ENDS = ("terminated", "truncated", "is_first")
NONE = np.zeros((0, 1), bool)
AT_ONCE = 1 << 20  # maximum bytes of the batches that are copied from the buffer together


class Replay(Buffer):
    """Replay buffer: a ring buffer of rows. The newest `size` rows of each environment can be sampled.

    A row has the observation, reward and flags of a time step, and the action that the agent chose after it. The
    current time step has no action yet. Before rows are sampled or saved, it is written after the newest row, so that
    the newest transition can be sampled too.

    No transition starts in the last row of an episode, because the next step only resets the environment. Samplers can
    skip these rows, which are listed in host memory: drawing samples needs no synchronization with the device that
    stores the rows. Several batches are copied in one operation, up to 1 MiB. If the learner writes back extra outputs
    of the agent (see `fixed_extras`), each batch is copied after the values of the previous one were written.

    Rows also store the extra outputs of the agent that are named in `extras`, such as log-probabilities, and the
    agent's carry (recurrent state) if `carry` is given. The stored values are those at the time of collection; a
    learner can replace the extra outputs by `write_back`. The shapes of extra outputs and carry are arguments, because
    the first rows can have random actions and then contain neither of them.

    With `buffer.memmap`, rows are stored in temporary files that are removed when the process ends. Checkpoints store
    the rows in chunks.

    Args:
        context: ranks and number of environments; its random stream `replay` draws the samples.
        sampler: chooses where sequences start, and their number of steps L.
        size: number of rows per environment that can be sampled.
        batch_size: N, number of sequences in a batch.
        ratio: gradient steps per policy step: S policy steps after `starts`, ⌊ratio · S⌋ gradient steps are due. S is
            the sum over all ranks; a gradient step that all ranks take together counts once.
        starts: number of policy steps at the start of the run for which no gradient steps are taken.
        pretrain: number of gradient steps that the first update takes in addition.
        every: policy steps between two updates. Each update takes all gradient steps that are due, so `every` does not
            change their total number.
        end: policy steps of the whole run; at the end all remaining gradient steps are taken.
        online: if True, a batch begins with sequences of rows that were not used for training yet, oldest first. The
            rest of the batch is sampled from all rows.
        before: number of rows before each sequence that are returned as `Trajectory.past`, for agents with an
            observation history. It must be at least `rows_before(agent.history)`.
        lead: number of rows at the start of each sequence on which the learner does not train.
        extras: extra outputs of the agent that are stored with each row: name -> shape and dtype for one environment.
            They are 0 in the rows of a dataset that does not have them.
        fixed_extras: those names in `extras` that the learner never writes back, such as the log-probability of an
            action. `rlcore.conformance` checks that the learner writes back all others.
        carry: `agent.initial(1)` if the learner needs the carry at the start of each sequence; rollouts must then have
            one row. Rows that the agent did not process, such as those of a dataset, are stored with this carry.
        device: device that stores the rows; batches are returned on the learner's device.
    """

    def __init__(
        self,
        context: Context[AlgorithmConfig],
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
        lead: int = 0,
        extras: Mapping[str, ArraySpec] | None = None,
        fixed_extras: Sequence[str] = (),
        carry: Carry = (),
        device: torch.device | str = "cpu",
    ) -> None:
        if size <= (length := sampler.length):
            raise ValueError(f"size={size}: too small for sequences of {length} steps; must be at least {length + 1}")
        if unknown := {*fixed_extras} - {*(extras or ())}:
            raise ValueError(
                f"fixed_extras={sorted(unknown)}: must be names in extras ({', '.join(extras or ()) or 'none'})"
            )
        self.extras, self.fixed_extras = dict(extras or {}), tuple(fixed_extras)
        self.sampler, self.size, self.batch_size, self.before, self.lead = sampler, size, batch_size, before, lead
        self.ratio, self.starts, self.pretrain = Fraction(str(ratio)), starts, pretrain
        self.every, self.end, self.online = every, end, online
        self.device, self.target, self.ranks = torch.device(device), context.fabric.device, context.ranks
        self.rng, self.width = context.generator("replay"), context.num_envs
        # Rows per environment in the whole run; None if unknown, because a dataset is loaded first.
        whole = end if context.config.buffer.load_from is None else None
        self._rows = None if whole is None else whole // (self.width * self.ranks.size)
        self._files = context.config if context.config.buffer.memmap and self.device.type == "cpu" else None
        self._carry, fresh = carry, tree.name_leaves(carry)
        self._fresh = {name: value[0].cpu() for name, value in fresh.items()}
        said = {name: (part.shape, getattr(torch, part.dtype)) for name, part in self.extras.items()}
        self._forms: dict[str, Form] = {
            "said": said,
            "carry": form_of(fresh, 1),
        }  # environment data is added with the first rows
        self.row_bytes = row_bytes(context.spec) + sum(map(form_bytes, self._forms.values()))
        self.chunk_rows = chunk_rows(size, self.width * self.row_bytes)
        written_back = {*self.extras} - {*self.fixed_extras}
        self._at_once = 1 if written_back else max(1, AT_ONCE // (self.batch_rows * self.row_bytes))  # batches per copy
        self._rings: dict[str, ChunkedRing] = {}
        self._resets = np.zeros(0, bool)  # [slots, B], indexed like the ring buffer: True if the next step only resets
        self._flags: list[np.ndarray] = []  # views [slots, B] of ENDS, if the rows are in host memory
        self._offsets = (
            np.arange(-before, length + 1)[:, None] * self.width
        )  # places of a sequence's rows minus its first place
        self.written = 0  # rows per environment since the start of the run
        self.taken = 0  # number of batches that were returned so far
        self._last: Trajectory | None = None  # time step after the newest row, until it is written
        self._newest = 0  # policy steps in the rows of the last `extend`, over all ranks
        self._steps_seen = 0  # policy steps over all ranks
        self._queue: Position = ()  # position in the queue of new sequences
        self._episodes = EpisodeIndex(self.width)

    @property
    def stores_carry(self) -> bool:
        """True if each row stores the agent's carry."""
        return bool(self._fresh)

    @property
    def capacity(self) -> int:
        """Number of rows per environment for which the buffer has space.

        It is larger than `size`: the buffer keeps the oldest chunk of rows completely, also the rows of this chunk that
        can no longer be sampled. If the run collects fewer rows in total, the buffer has space only for the collected
        rows. The system allocates host memory only when rows are written.
        """
        return self._slots

    @property
    def _slots(self) -> int:
        # The oldest chunk is stored completely even if its first rows can no longer be sampled.
        most = self.size + self.before + self.chunk_rows + 1
        return most if self._rows is None else min(most, self._rows + self.before + 2)

    @property
    def batch_rows(self) -> int:
        """Number of rows of one batch, including the `before` rows before each sequence and the time step after it."""
        return self.batch_size * (self.before + self.sampler.length + 1)

    @property
    def learned_rows(self) -> int:
        """Number of rows of one batch on which the learner trains: those of `batch_size` sequences without `lead`."""
        return self.batch_size * (self.sampler.length - self.lead)

    @property
    def in_files(self) -> bool:
        """True if the rows are stored in files."""
        return self._files is not None

    @property
    def oldest(self) -> int:
        """Index of the oldest row that can be sampled, counted from the start of the run."""
        return max(0, self.written - self.size)

    @property
    def collected(self) -> int:
        """Index of the first row that this run collected; earlier rows were loaded from a dataset."""
        return self.written - self._steps_seen // (self.width * self.ranks.size)

    # Rows -------------------------------------------------------------------------------------------------------------

    def extend(self, steps: Trajectory, last: Trajectory) -> None:
        """Add T rows [T, B, ...] and the time step [B, ...] after them; the oldest rows are overwritten.

        Args:
            steps: trajectory, [T, B, ...].
            last: time step after `steps`. It is not copied and must not be changed before the next call.

        Raises:
            ValueError: T is not 1 although the buffer stores the carry of each row. A longer rollout contains only the
                carry of its first row.
        """
        count, given = len(steps.reward), self._columns(steps)
        self._newest = count * self.width * self.ranks.size
        if given["carry"] and count != 1:
            raise ValueError(
                f"rollout of {count} rows: a replay buffer that stores carries accepts only rollouts of one row; "
                "collect one row at a time, or create the buffer without carry"
            )
        if count <= self.size:
            self._write(self.written, count, given)
        else:
            for begin in range(0, count, self.size):
                part = {k: {n: v[begin : begin + self.size] for n, v in c.items()} for k, c in given.items()}
                self._write(self.written + begin, min(self.size, count - begin), part)
        self.written += count
        self._last = last  # not written yet, because the next call usually contains the same time step with its action

    def _write_last(self) -> None:
        """Write the current time step, which has no action yet, after the newest row.

        The newest transition ends in this time step and can only be sampled after it is written.
        """
        if self._last is not None:
            self._write(self.written, 1, self._columns(self._last))
            self._last = None

    def _columns(self, steps: Trajectory) -> dict[str, dict[str, Tensor]]:
        said = {name: steps.extras[name] for name in self._forms["said"]} if steps.extras else {}
        carry = tree.name_leaves(steps.carry) if self._forms["carry"] else {}
        return {"given": columns(steps) | {"action": steps.action}, "said": said, "carry": carry}

    def _write(self, row: int, count: int, given: Mapping[str, Mapping[str, Tensor]]) -> None:
        if not self._rings:
            self._make_rings(form_of(given["given"], given["given"]["reward"].ndim))
        for name, ring in self._rings.items():
            ring.ring.write(row, count, given[name], self._fresh)
        self._note_resets(row, count, given["given"])

    def _note_resets(self, row: int, count: int, given: Mapping[str, Tensor]) -> None:
        begin = row % len(self._resets)
        # In rows of a dataset, an episode can start although no episode ended in the row before.
        if count == 1 and self._flags:  # the row was just written to these arrays, so its flags can be read from them
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

    def _make_rings(self, given: Form) -> None:
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
        """Replace extra outputs of the agent, such as latent states, in the rows of a batch.

        Rows that left the buffer after the batch was sampled are skipped.

        Args:
            places: `Batch.places` [L, N], positions of the rows. If a row occurs twice, the last occurrence is used.
            extras: name of an extra output -> new values [L, N, ...].

        Raises:
            ValueError: a name is not in `extras`, the argument of the constructor.
        """
        known = self._forms["said"].keys()
        if unknown := extras.keys() - known:
            raise ValueError(
                f"write_back: {', '.join(sorted(unknown))}: must be names in the argument `extras` of this replay "
                f"buffer ({', '.join(known) or 'none'})"
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
        """Yield one batch for each gradient step that is due, with sequences [L, N] and the time step [N] after them.

        Several batches are copied from the buffer in one operation, unless the learner writes back extra outputs of the
        agent. A batch then contains the values that were written back for the batches before it.

        Args:
            policy_steps: number of policy steps, over all ranks, that were taken before the newest rollout.

        Yields:
            One batch for each gradient step.

        Raises:
            RunError: gradient steps are due at the end of the run, but no sequence can be sampled.
        """
        self._steps_seen = policy_steps + self._newest
        owed = self.count_batches(self._steps_seen) - self.taken
        if self._steps_seen == self.end and owed > 0 and not self.sampler.can_draw(self):
            raise RunError(
                f"{owed} gradient steps are due at the end of the run, but the replay buffer has no sequence of "
                f"{self.sampler.length} rows; increase algo.total_steps or buffer.size, or use shorter sequences"
            )
        while (due := self.due(policy_steps)) > 0:
            for batch in self._draw(min(due, self._at_once), policy_steps):
                self.taken += 1
                yield batch

    def due(self, policy_steps: int) -> int:
        """Return how many batches the next update will use, one for each gradient step.

        `policy_steps` is the number of policy steps, over all ranks, that were taken before the newest rollout.
        """
        now = policy_steps + self._newest
        trains = now // self.every > policy_steps // self.every or now == self.end
        owed = self.count_batches(now) - self.taken
        if not trains or owed <= 0:
            return 0
        self._write_last()
        return owed if self.sampler.can_draw(self) else 0

    def count_batches(self, policy_steps: int) -> int:
        """Return the total number of gradient steps for the first `policy_steps` policy steps of a run."""
        learned = policy_steps - self.starts
        # Integers: a product of Fractions computes a greatest common divisor, which takes a tenth of the sampling time.
        return self.ratio.numerator * learned // self.ratio.denominator + self.pretrain if learned > 0 else 0

    def episodes(self) -> WholeEpisodes:
        """Return the complete episodes among the rows that can be sampled."""
        begin = self._episodes.next_row(self.oldest)
        ended = self._resets[np.arange(begin, self.written) % len(self._resets)] if begin < self.written else NONE
        return self._episodes.find(ended, self.oldest)

    def only_resets(self, places: np.ndarray) -> np.ndarray:
        """Return [N] bool for the rows at `places` [N]: True if no transition starts in the row.

        This is the case if the row is the last one of its episode, because the next step then only resets the
        environment. The place of row number t of environment b is the integer t · B + b.
        """
        return self._resets.ravel()[places % self._resets.size]

    def _draw(self, count: int, policy_steps: int) -> Iterator[Batch]:
        # Positions are drawn batch by batch, so that they do not depend on how many batches are copied together.
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
        """Return the metric `Params/replay_ratio`, or {} before the first policy step.

        It is the number of gradient steps, summed over ranks, divided by the number of policy steps of all ranks.
        """
        taken = self.taken * self.ranks.size
        return {"Params/replay_ratio": taken / self._steps_seen} if self._steps_seen else {}

    def copy_rows(self) -> Trajectory:
        """Copy all rows that can be sampled, and the current time step after them, in time order; [rows + 1, B].

        The action of the current time step is a placeholder. Raises UserError if the buffer has no rows.
        """
        self._write_last()
        if not self._rings:
            raise UserError("copy_rows(): the replay buffer has no rows; collect or load rows first")
        rows = {name: ring.ring.between(self.oldest, self.written + 1) for name, ring in self._rings.items()}
        steps = as_trajectory(rows["given"], rows["given"]["action"])
        steps.extras = rows.get("said", {})
        return steps

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state for a checkpoint: counters, state of the random stream, and all rows that can be sampled.

        The rows are divided into chunks, which consecutive checkpoints share.
        """
        self._write_last()
        first = max(0, self.oldest - self.before)
        rows = {name: ring.state(first, self.written) for name, ring in self._rings.items()}
        counts = {"written": self.written, "taken": self.taken, "part": self.chunk_rows}
        given, rng = rows.pop("given", {"chunks": [], "tail": []}), streams.generator_state(self.rng)
        queue = {"queue": [*self._queue]} if self.online else {}
        return counts | {"rng": rng} | queue | given | rows

    def load_state_dict(self, state: State) -> None:
        """Restore the state returned by `state_dict`.

        The number of rows per chunk is also restored. It can be smaller than in a new buffer if the state is from a
        shorter run.
        """
        self.chunk_rows = state["part"]
        streams.load_generator_state(self.rng, state["rng"])
        self.written, self.taken, self._rings, self._last = state["written"], state["taken"], {}, None
        self._queue, self._episodes = tuple(state.get("queue", ())), EpisodeIndex(self.width)
        if not state["tail"]:
            return
        self._make_rings(form_of(state["tail"][-1].columns(), 2))
        for name in self._rings.keys() & state.keys():
            for _ in self._rings[name].load(state[name], self.written):
                pass
        for row, rows in self._rings["given"].load(state, self.written):
            self._note_resets(row, len(rows["reward"]), rows)


def stored_rows(state: State) -> Trajectory:
    """Load the rows of a replay buffer from its state, without creating a buffer.

    Args:
        state: state that `Replay.state_dict` returned.

    Returns:
        Trajectory [rows + 1, B] of all stored rows and the time step after them, in time order. The action of this time
        step is a placeholder. The carry of the agent is not loaded.

    Raises:
        KeyError: the state is not that of a `Replay`.
        ValueError: the buffer had no rows.
    """
    whole = _join_chunks(state)
    if not whole:
        raise ValueError("the replay buffer has no rows")
    steps = as_trajectory(whole, whole["action"])
    steps.extras = _join_chunks(state["said"]) if "said" in state else {}
    return steps


def _join_chunks(state: State) -> dict[str, Tensor]:
    """Return the columns [rows, B, ...] of a `ChunkedRing` from its state."""
    columns: dict[str, list[Tensor]] = {}
    for chunk in (*state["chunks"], *state["tail"]):
        for name, rows in chunk.columns().items():
            columns.setdefault(name, []).append(rows)
    return {name: torch.cat(columns.pop(name)) for name in list(columns)}
