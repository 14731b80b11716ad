"""Observation history: past observations and actions that an agent sees in addition to the newest observation.

An agent declares `history`, a `Window` for each key whose past rows it sees. A key is one of its observation keys, or
ACTION for its own past actions. `act` and the losses then receive [frames, *shape] for this key, or [frames, A] of
actions. In row t, frame j of n (the newest is the last) is

    row  t - min((n-1-j) · dilation, age[t])        age: rows since the first row of the episode

Frames never cross the start of an episode: its first row is repeated instead. Actions before the start are zeros.

Rollouts and replay buffers store each row once, and the rows before a batch are in `Trajectory.past`. For acting,
`HistoryWrapper` wraps an agent and keeps the past rows in the carry. The collector, evaluations, videos and served
policies use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlcore.functional.noise import Noise
from rlcore.protocols import Agent
from rlcore.spec import ACTION, EnvSpec, Window
from rlcore.types import Batch, Carry

History = Mapping[str, Window]
Columns = dict[str, Tensor]  # obs/<key>, action and is_first, [rows, B, ...]


def rows_before(history: History) -> int:
    """Return the number of rows before a row that its history needs."""
    return max((window.reach + (key == ACTION) for key, window in history.items()), default=0)


def gather(rows: Tensor, is_first: Tensor, window: Window, count: int) -> Tensor:
    """Gather the frames of the last `count` rows.

    Args:
        rows: [L, B, ...].
        is_first: [L, B] bool, True if a row is the first of an episode.
        window: number and distance of the frames.
        count: T, at most L.

    Returns:
        [T, B, frames, ...], the newest frame last. No frame is older than row 0.
    """
    return _take(rows.flatten(0, 1), _places(is_first, window, count))


def _places(is_first: Tensor, window: Window, count: int) -> Tensor:
    """Return the indices [count, B, frames] int64, into all L·B rows, of the frames of the last `count` rows."""
    length, width = is_first.shape
    index = torch.arange(length, device=is_first.device).unsqueeze(-1)
    opened = torch.where(is_first, index, 0)
    # Acting needs one row only; `amax` is then enough, and every compiler backend supports it.
    start = opened.cummax(0).values[length - count :] if count > 1 else opened.amax(0, keepdim=True)
    newest = index[length - count :]
    back = torch.arange(window.frames - 1, -1, -1, device=is_first.device) * window.dilation
    rows = newest.unsqueeze(-1) - torch.minimum(back, (newest - start).unsqueeze(-1))
    return rows * width + torch.arange(width, device=is_first.device).unsqueeze(-1)


def _last(rows: Tensor, count: int) -> Tensor:
    return rows[len(rows) - count :]


def _column(key: str, window: Window, past: Columns, new: Columns) -> tuple[Tensor, Tensor]:
    """Return the rows [reach + T, B, ...] that the window of a key needs, and their `is_first`."""
    opens = torch.cat([_last(past["is_first"], window.reach), new["is_first"]])
    if key != ACTION:
        return torch.cat([_last(past[f"obs/{key}"], window.reach), new[f"obs/{key}"]]), opens
    rows = torch.cat([_last(past["action"], window.reach + 1), new["action"]])  # the action before each row
    return rows.masked_fill(opens.unsqueeze(-1), 0), opens


class SamplesWithHistory(NamedTuple):
    """N independent samples with their history, stored without copying frames.

    Attributes:
        rows: key -> [S, ...] as returned by the environment: the N rows, and for a key with a window also past rows.
        places: key -> [N, frames] int64, indices into `rows` of the frames of a key with a window.
    """

    rows: dict[str, Tensor]
    places: dict[str, Tensor]

    def at(self, index: Tensor) -> dict[str, Tensor]:
        """Return observations of samples `index` [*M] int64: key -> [*M, ...], or [*M, frames, ...] with a window."""
        rows, places = self
        return {key: _take(row, _take(places[key], index) if key in places else index) for key, row in rows.items()}


def _take(rows: Tensor, places: Tensor) -> Tensor:
    return rows.index_select(0, places.flatten()).unflatten(0, places.shape)


def gather_history(batch: Batch, history: History, keys: Iterable[str]) -> tuple[SamplesWithHistory, dict[str, Tensor]]:
    """Return the rows of a batch as N = T·B samples with history.

    Only keys with a window are copied, once per row instead of once per frame.

    Args:
        batch: [T, B], observations as returned by the environment, with `past`.
        history: history of the agent.
        keys: observation keys that the agent reads.

    Returns:
        The samples, with these keys and with ACTION if the history has it, and the observations of the time step after
        the batch as the agent sees them, key -> [B, ...] or [B, frames, ...].
    """
    rows, places = {key: batch.steps.obs[key].flatten(0, 1) for key in keys}, dict[str, Tensor]()
    last, new = dict(batch.last.obs), _newest(batch, history) if history else {}
    for key, window in history.items():
        column, opens = _column(key, window, batch.steps.past, new)
        flat, where = column.flatten(0, 1), _places(opens, window, len(new["is_first"]))
        rows[key], places[key] = flat, where[:-1].flatten(0, 1)
        last[key] = _take(flat, where[-1])
    return SamplesWithHistory(rows, places), last


def add_history(batch: Batch, history: History) -> Batch:
    """Return the batch with observations as the agent sees them: [T, B, frames, ...] for keys with a window.

    This copies every frame. Use it for batches of a replay buffer and for rollouts that are used once.
    """
    if not history:
        return batch
    new, obs, arrived = _newest(batch, history), dict(batch.steps.obs), dict(batch.last.obs)
    for key, window in history.items():
        frames = gather(*_column(key, window, batch.steps.past, new), window, len(new["is_first"]))
        obs[key], arrived[key] = frames[:-1], frames[-1]
    return replace(batch, steps=replace(batch.steps, obs=obs), last=replace(batch.last, obs=arrived))


def _newest(batch: Batch, history: History) -> Columns:
    steps, last = batch.steps, batch.last
    keys = [key for key in history if key != ACTION]
    obs = {f"obs/{key}": torch.cat([steps.obs[key], last.obs[key].unsqueeze(0)]) for key in keys}
    return obs | {"action": steps.action, "is_first": torch.cat([steps.is_first, last.is_first.unsqueeze(0)])}


class HistoryWrapper(nn.Module):
    """Wrapper that gives an agent its history. Its carry is {"agent": carry of the agent, "past": rows [B, rows, ...]}.

    Args:
        agent: agent with a `history`.
        spec: spec of the environment.
    """

    def __init__(self, agent: Any, spec: EnvSpec) -> None:
        super().__init__()
        self.agent, self.spec, self.history = agent, spec, dict(agent.history)

    def initial(self, batch_size: int) -> Carry:
        """Return the carry at the start of an episode."""
        past, spec = dict[str, Tensor](), self.spec
        for key, window in self.history.items():
            if key == ACTION:
                dtype = torch.float32 if spec.action.continuous else torch.int64
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
        """Call the agent's `act` with its history; obs: key -> [B, ...] as returned by the environment."""
        past, new = past_of(carry), self._new(obs, is_first)
        seen = dict(obs)
        for key, window in self.history.items():
            seen[key] = gather(*_column(key, window, past, new), window, 1)[0]
        own, action, extras = self.agent.act(carry["agent"], seen, is_first, rng, greedy)
        return {"agent": own, "past": _move_on(past, new | {"action": action.unsqueeze(0)})}, action, extras

    def append(self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, action: Tensor) -> Carry:
        """Return the carry after a row for which the action was not chosen by this agent."""
        new = self._new(obs, is_first) | {"action": action.unsqueeze(0)}
        return {"agent": carry["agent"], "past": _move_on(past_of(carry), new)}

    def _new(self, obs: dict[str, Tensor], is_first: Tensor) -> Columns:
        nothing = torch.zeros(0, len(is_first), self.spec.action.size, device=is_first.device)
        dtype = torch.float32 if self.spec.action.continuous else torch.int64
        rows = {f"obs/{key}": value.unsqueeze(0) for key, value in obs.items()}
        return rows | {"action": nothing.to(dtype), "is_first": is_first.unsqueeze(0)}

    def to_env(self, action: Tensor) -> Tensor:
        """See `Agent`."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """See `Agent`."""
        return self.agent.from_env(action)


def past_of(carry: Carry) -> Columns:
    """Return the past rows [rows, B, ...] in a carry of `HistoryWrapper`."""
    return {name: rows.transpose(0, 1) for name, rows in carry["past"].items()}


def _move_on(past: Columns, new: Columns) -> Columns:
    """Return the past rows for the next row, [B, rows, ...]; rows before an episode's start are set to zero."""
    opens = new["is_first"]
    return {
        name: torch.cat([rows.masked_fill(opens.view(1, -1, *[1] * (rows.ndim - 2)), 0), new[name].to(rows.dtype)])[
            1:
        ].transpose(0, 1)
        for name, rows in past.items()
    }


def with_history(agent: Any, spec: EnvSpec) -> Agent:
    """Return the agent, wrapped in `HistoryWrapper` if it has a history."""
    return HistoryWrapper(agent, spec) if getattr(agent, "history", None) else agent
