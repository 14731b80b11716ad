"""Observation history: past observations and actions that an agent sees in addition to the newest observation.

An agent that uses past data has an attribute `history`: key -> `Window`. The key is an observation key, or ACTION for
the agent's past actions. For an observation key with a window, `act` and the losses receive the last n frames,
[n, *shape], and not only the newest one. Past actions are [n, A]. In row (time step) t, frame j, counted from 0 for the
oldest to n-1 for the newest, is that of

    row  t - min((n-1-j) · dilation, age[t])        age: rows since the first row of the episode

Frames never come from an earlier episode: the first row of the episode is repeated instead. If the window is padded,
they are zeros, and a mask [n] with the key `valid_key(key)` is True for the frames of the episode. Actions before the
start of the episode are zeros.

Rollouts and replay buffers store each row only once. For training, `Trajectory.past` has the rows before a batch. For
acting (data collection, evaluation, videos and served policies), `HistoryWrapper` wraps the agent and keeps the past
rows in the carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Noise
from rlcore.protocols import Agent
from rlcore.spec import ACTION, EnvSpec, Window, valid_key
from rlcore.types import Batch, Carry

History = Mapping[str, Window]
Columns = dict[str, Tensor]  # obs/<key>, action and is_first, [rows, B, ...]
# ONNX Runtime can neither mask nor multiply tensors of these dtypes, so an exported policy computes in the wider dtype.
WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}


def rows_before(history: History) -> int:
    """Return how many past rows, before the newest one, the windows of an observation history need."""
    return max((window.reach + (key == ACTION) for key, window in history.items()), default=0)


class Frames(NamedTuple):
    """Frames that the agent sees at some time steps, as positions in rows that are flattened to [L·B, ...].

    Attributes:
        newest: [*M] int64, position of the newest frame.
        age: [*M] int64, number of rows since the first row of the episode, or since row 0.
        width: B, the distance between the positions of consecutive rows.
        window: number of frames, and their distance in rows.
    """

    newest: Tensor
    age: Tensor
    width: int
    window: Window

    def at(self, index: Tensor) -> Frames:
        """Select time steps by their indices [*M]."""
        return self._replace(newest=_take(self.newest, index), age=_take(self.age, index))

    @property
    def back(self) -> Tensor:
        """Distances of the frames from the newest one in rows, oldest frame first, [frames]."""
        return torch.arange(self.window.frames - 1, -1, -1, device=self.age.device) * self.window.dilation

    @property
    def valid(self) -> Tensor:
        """Mask of the frames that belong to the episode, [*M, frames] bool."""
        return self.back <= self.age.unsqueeze(-1)

    def take(self, rows: Tensor) -> Tensor:
        """Return the frames [*M, frames, ...] from the flattened rows [L·B, ...]."""
        back = torch.minimum(self.back, self.age.unsqueeze(-1))
        frames = _take(rows, self.newest.unsqueeze(-1) - back * self.width)
        if not self.window.padded:
            return frames
        valid, dtype = self.valid.view(*back.shape, *[1] * (rows.ndim - 1)), WIDER.get(rows.dtype, rows.dtype)
        return (frames.to(dtype) * valid.to(dtype)).to(rows.dtype)

    def show(self, key: str, rows: Tensor) -> dict[str, Tensor]:
        """Return what the agent sees of a key: key -> frames, and the mask if the window is padded."""
        seen = {key: self.take(rows)}
        return seen | {valid_key(key): self.valid} if self.window.padded else seen


def gather(rows: Tensor, is_first: Tensor, window: Window, count: int) -> Tensor:
    """Stack past rows: return, for each of the last T of L rows, the frames that the agent sees at this time step.

    Args:
        rows: [L, B, ...], consecutive rows of an observation key or of the actions.
        is_first: [L, B] bool, True if a row is the first of an episode.
        window: number of frames, and distance between two frames in rows.
        count: T, number of rows for which frames are returned; at most L.

    Returns:
        [T, B, frames, ...], the newest frame last. Frames from before the start of the episode, or from before row 0,
        are replaced by the first row of the episode or by row 0; by zeros if the window is padded.
    """
    return _frames(is_first, window, count).take(rows.flatten(0, 1))


def _frames(is_first: Tensor, window: Window, count: int) -> Frames:
    """Return the frames at the last `count` of L rows; `is_first` is [L, B], the result has tensors [count, B]."""
    length, width = is_first.shape
    index = torch.arange(length, device=is_first.device).unsqueeze(-1)
    opened = torch.where(is_first, index, 0)
    # Acting needs only one row. In this case `amax` gives the same result, and every compiler backend supports it.
    start = opened.cummax(0).values[length - count :] if count > 1 else opened.amax(0, keepdim=True)
    newest = index[length - count :]
    return Frames(newest * width + torch.arange(width, device=is_first.device), newest - start, width, window)


def _last(rows: Tensor, count: int) -> Tensor:
    return rows[len(rows) - count :]


def _column(key: str, window: Window, past: Columns, new: Columns) -> tuple[Tensor, Tensor]:
    """Concatenate past rows and new rows of a key, and return them with their `is_first`, both [reach + T, B, ...].

    `reach` is the number of past rows that the window needs. For the key ACTION, each row is the previous action.
    """
    opens = torch.cat([_last(past["is_first"], window.reach), new["is_first"]])
    if key != ACTION:
        return torch.cat([_last(past[f"obs/{key}"], window.reach), new[f"obs/{key}"]]), opens
    rows = torch.cat([_last(past["action"], window.reach + 1), new["action"]])  # the action before each row
    return rows.masked_fill(opens.unsqueeze(-1), 0), opens


class SamplesWithHistory(NamedTuple):
    """N independent samples (observations) with their history; frames that samples share are stored only once.

    Attributes:
        rows: key -> [S, ...], observations as returned by the environment. If the agent sees only the latest
            observation of a key, S = N: one row for each sample. If it sees a window of frames, S > N: the rows also
            include past observations.
        frames: for each key with a window: the positions of the samples [N] in `rows[key]`. The frames are gathered
            for a minibatch, so that memory does not grow with the length of a window.
    """

    rows: dict[str, Tensor]
    frames: dict[str, Frames]

    def at(self, index: Tensor) -> dict[str, Tensor]:
        """Select samples and return their observations as the agent sees them.

        `index` [*M] int64 are indices of samples in [0, N). The result is key -> [*M, ...], or [*M, frames, ...] for a
        key with a window.
        """
        seen: dict[str, Tensor] = {}
        for key, rows in self.rows.items():
            seen |= self.frames[key].at(index).show(key, rows) if key in self.frames else {key: _take(rows, index)}
        return seen


def _take(rows: Tensor, places: Tensor) -> Tensor:
    return rows.index_select(0, places.flatten()).unflatten(0, places.shape)


def gather_history(batch: Batch, history: History, keys: Iterable[str]) -> tuple[SamplesWithHistory, dict[str, Tensor]]:
    """Return the T·B rows of a batch as N = T·B samples with their observation history.

    Each row is stored only once, although it is a frame of several samples. Keys without a window are not copied.

    Args:
        batch: batch [T, B] with observations as returned by the environment; `batch.steps.past` has the rows before it.
        history: `history` of the agent: key -> window.
        keys: observation keys that the agent reads.

    Returns:
        Two values. The first one has the samples, for all `keys`, and for ACTION if the history contains it. The second
        one has the observations of the time step after the batch, as the agent sees them: key -> [B, ...], or [B,
        frames, ...] for a key with a window.
    """
    rows, frames = {key: batch.steps.obs[key].flatten(0, 1) for key in keys}, dict[str, Frames]()
    last, new = dict(batch.last.obs), _newest(batch, history) if history else {}
    for key, window in history.items():
        column, opens = _column(key, window, batch.steps.past, new)
        flat, found = column.flatten(0, 1), _frames(opens, window, len(new["is_first"]))
        rows[key] = flat
        frames[key] = found._replace(newest=found.newest[:-1].flatten(), age=found.age[:-1].flatten())
        last |= found._replace(newest=found.newest[-1], age=found.age[-1]).show(key, flat)
    return SamplesWithHistory(rows, frames), last


def add_history(batch: Batch, history: History) -> Batch:
    """Return a batch in which the observations of each key with a window are stacked frames, [T, B, frames, ...].

    Every frame is copied, so a row is stored several times. Use this function for batches of a replay buffer, and for
    rollouts that are used only once. For rollouts that are used in several epochs, use `gather_history`.
    """
    if not history:
        return batch
    new, obs, arrived = _newest(batch, history), dict(batch.steps.obs), dict(batch.last.obs)
    for key, window in history.items():
        column, opens = _column(key, window, batch.steps.past, new)
        for name, part in _frames(opens, window, len(new["is_first"])).show(key, column.flatten(0, 1)).items():
            obs[name], arrived[name] = part[:-1], part[-1]
    return replace(batch, steps=replace(batch.steps, obs=obs), last=replace(batch.last, obs=arrived))


def _newest(batch: Batch, history: History) -> Columns:
    steps, last = batch.steps, batch.last
    keys = [key for key in history if key != ACTION]
    obs = {f"obs/{key}": torch.cat([steps.obs[key], last.obs[key].unsqueeze(0)]) for key in keys}
    return obs | {"action": steps.action, "is_first": torch.cat([steps.is_first, last.is_first.unsqueeze(0)])}


class HistoryWrapper(nn.Module):
    """Wrapper that adds past observations and actions to the input of an agent that has a `history`.

    The carry of the wrapper is {"agent": carry of the wrapped agent, "past": name -> past rows [B, rows, ...]}.

    Args:
        agent: agent with an attribute `history`: key -> window.
        spec: spec of the environment.
    """

    def __init__(self, agent: Any, spec: EnvSpec) -> None:
        super().__init__()
        self.agent, self.spec, self.history = agent, spec, dict(agent.history)

    def initial(self, batch_size: int) -> Carry:
        """Return the carry at the start of an episode: the initial carry of the agent, and past rows of zeros."""
        past, spec = dict[str, Tensor](), self.spec
        for key, window in self.history.items():
            if key == ACTION:
                dtype = getattr(torch, spec.action.agent_dtype)
                past["action"] = torch.zeros(batch_size, window.reach + 1, spec.action.size, dtype=dtype)
            else:
                shape, dtype = spec.obs[key].shape, getattr(torch, spec.obs[key].dtype)
                past[f"obs/{key}"] = torch.zeros(batch_size, window.reach, *shape, dtype=dtype)
        past["is_first"] = torch.zeros(
            batch_size, max(window.reach for window in self.history.values()), dtype=torch.bool
        )
        return {"agent": self.agent.initial(batch_size), "past": past}

    def act(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool
    ) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """Add the observation history to `obs`, call the agent's `act`, and store the new row in the carry.

        `obs` is key -> [B, ...] as returned by the environment.
        """
        past, new = past_of(carry), self._new(obs, is_first)
        seen = dict(obs)
        for key, window in self.history.items():
            column, opens = _column(key, window, past, new)
            shown = _frames(opens, window, 1).show(key, column.flatten(0, 1))
            seen |= {name: part[0] for name, part in shown.items()}
        own, action, extras = self.agent.act(carry["agent"], seen, is_first, rng, greedy)
        return {"agent": own, "past": _move_on(past, new | {"action": action.unsqueeze(0)})}, action, extras

    def append(self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, action: Tensor) -> Carry:
        """Add a time step to the past rows in the carry without calling the agent; return the new carry.

        This is for actions that the agent did not choose, for example random ones.
        """
        new = self._new(obs, is_first) | {"action": action.unsqueeze(0)}
        return {"agent": carry["agent"], "past": _move_on(past_of(carry), new)}

    def _new(self, obs: dict[str, Tensor], is_first: Tensor) -> Columns:
        nothing = torch.zeros(0, is_first.shape[0], self.spec.action.size, device=is_first.device)
        dtype = getattr(torch, self.spec.action.agent_dtype)
        rows = {f"obs/{key}": value.unsqueeze(0) for key, value in obs.items()}
        return rows | {"action": nothing.to(dtype), "is_first": is_first.unsqueeze(0)}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions of the wrapped agent to the environment's format (see `Agent.to_env`)."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions of the environment to the wrapped agent's format (see `Agent.from_env`)."""
        return self.agent.from_env(action)


def past_of(carry: Carry) -> Columns:
    """Return the past rows [rows, B, ...] that the carry of a `HistoryWrapper` contains."""
    return {name: rows.transpose(0, 1) for name, rows in carry["past"].items()}


def _move_on(past: Columns, new: Columns) -> Columns:
    """Append a new row to the past rows, and remove the oldest one; return name -> [B, rows, ...].

    If the new row starts an episode, all earlier rows are set to zero.
    """
    kept, after = ~new["is_first"], dict[str, Tensor]()
    for name, rows in past.items():
        mask = kept.view(1, -1, *[1] * (rows.ndim - 2))
        # ONNX Runtime cannot replace bools by `masked_fill`.
        wide = rows.to(WIDER.get(rows.dtype, rows.dtype))
        earlier = rows & mask if rows.dtype == torch.bool else wide.masked_fill(~mask, 0).to(rows.dtype)
        after[name] = torch.cat([earlier, new[name].to(rows.dtype)])[1:].transpose(0, 1)
    return after


def with_history(agent: Any, spec: EnvSpec) -> Agent:
    """Wrap an agent in `HistoryWrapper` if it has an observation history; return other agents unchanged."""
    return HistoryWrapper(agent, spec) if getattr(agent, "history", None) else agent
