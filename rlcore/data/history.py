"""The past that an agent sees beside the newest observation: kept, gathered and carried on in one place.

An agent declares `history`, a `Window` for each key whose past it is shown: one of its observation keys, or ACTION, its
own actions before, as it said them. `act` and the losses then find [frames, *shape] there, [frames, A] of actions. Of
row t, frame j (of n, the newest last) is

    row  t - min((n-1-j) · dilation, age[t])        age: rows since the one that opened the episode

so nothing crosses an episode's start, and before it there is its first row again; of actions, zeros.

A row is kept once: in a rollout or a memory as it came, and the few before it in `Steps.past`. Who acts carries these
along: `Recalling` makes of an agent with a history one whose carry holds them, for the collector, evaluations, films
and served policies alike.
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
    """Rows before another one that are needed to show its past."""
    return max((window.reach + (key == ACTION) for key, window in history.items()), default=0)


def gather(rows: Tensor, is_first: Tensor, window: Window, count: int) -> Tensor:
    """The frames of the last `count` of some rows.

    Args:
        rows: [L, B, ...].
        is_first: [L, B] bool, which of them open an episode; an episode that none of them opens began before.
        window: which rows belong to each.
        count: T, at most L.

    Returns:
        [T, B, frames, ...], the newest frame last.
    """
    return _take(rows.flatten(0, 1), _places(is_first, window, count))


def _places(is_first: Tensor, window: Window, count: int) -> Tensor:
    """Places of the frames of the last `count` rows among all L·B rows, [count, B, frames] int64."""
    length, width = is_first.shape
    index = torch.arange(length, device=is_first.device).unsqueeze(-1)
    opened = torch.where(is_first, index, 0)
    # When acting one row is asked for: of all rows one number then, which every compiler knows.
    start = opened.cummax(0).values[length - count :] if count > 1 else opened.amax(0, keepdim=True)
    newest = index[length - count :]
    back = torch.arange(window.frames - 1, -1, -1, device=is_first.device) * window.dilation
    rows = newest.unsqueeze(-1) - torch.minimum(back, (newest - start).unsqueeze(-1))
    return rows * width + torch.arange(width, device=is_first.device).unsqueeze(-1)


def _last(rows: Tensor, count: int) -> Tensor:
    return rows[len(rows) - count :]


def _column(key: str, window: Window, past: Columns, new: Columns) -> tuple[Tensor, Tensor]:
    """Rows of a key from as far back as its window reaches, [reach + T, B, ...], and which of them open an episode."""
    opens = torch.cat([_last(past["is_first"], window.reach), new["is_first"]])
    if key != ACTION:
        return torch.cat([_last(past[f"obs/{key}"], window.reach), new[f"obs/{key}"]]), opens
    rows = torch.cat([_last(past["action"], window.reach + 1), new["action"]])  # before each row, not at it
    return rows.masked_fill(opens.unsqueeze(-1), 0), opens


class Recalled(NamedTuple):
    """N rows without order, of which any may be looked at with its past.

    Attributes:
        rows: key -> [S, ...], as the environment gave them: the N rows; of a key with a window, those around them too.
        places: key -> [N, frames] int64, where in `rows` the frames of a key with a window lie.
    """

    rows: dict[str, Tensor]
    places: dict[str, Tensor]

    def at(self, index: Tensor) -> dict[str, Tensor]:
        """Observations key -> [*M, ...], or [*M, frames, ...] of one with a window, of the rows `index` [*M] int64."""
        rows, places = self
        return {key: _take(row, _take(places[key], index) if key in places else index) for key, row in rows.items()}


def _take(rows: Tensor, places: Tensor) -> Tensor:
    return rows.index_select(0, places.flatten()).unflatten(0, places.shape)


def recall(batch: Batch, history: History, keys: Iterable[str]) -> tuple[Recalled, dict[str, Tensor]]:
    """The rows of a batch as samples, N = T·B, and what an agent sees of the arrival after them, key -> [B, ...].

    Nothing but the keys with a window is copied, and these not frame by frame.

    Args:
        batch: [T, B], as the environment gave it, and the rows before.
        history: the agent's.
        keys: observation keys that the agent reads.

    Returns:
        The samples of these keys, and of ACTION where the history has it; and the arrival.
    """
    rows, places = {key: batch.steps.obs[key].flatten(0, 1) for key in keys}, dict[str, Tensor]()
    last, new = dict(batch.last.obs), _newest(batch, history) if history else {}
    for key, window in history.items():
        column, opens = _column(key, window, batch.steps.past, new)
        flat, where = column.flatten(0, 1), _places(opens, window, len(new["is_first"]))
        rows[key], places[key] = flat, where[:-1].flatten(0, 1)
        last[key] = _take(flat, where[-1])
    return Recalled(rows, places), last


def show_past(batch: Batch, history: History) -> Batch:
    """The batch with observations as an agent sees them: [T, B, frames, ...] of a key with a window.

    Frames are copied here: for batches drawn from a memory, and rollouts that are learned from once.
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


class Recalling(nn.Module):
    """An agent that is shown its history, which is part of the carry: {"agent": its own, "past": rows [B, rows, ...]}.

    Args:
        agent: with a `history`.
        spec: of the environment.
    """

    def __init__(self, agent: Any, spec: EnvSpec) -> None:
        super().__init__()
        self.agent, self.spec, self.history = agent, spec, dict(agent.history)

    def initial(self, batch_size: int) -> Carry:
        """The carry at an episode's start."""
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
        """Act as the agent does, which is shown its history; obs key -> [B, ...], as the environment gave it."""
        past, new = past_of(carry), self._new(obs, is_first)
        seen = dict(obs)
        for key, window in self.history.items():
            seen[key] = gather(*_column(key, window, past, new), window, 1)[0]
        own, action, extras = self.agent.act(carry["agent"], seen, is_first, rng, greedy)
        return {"agent": own, "past": _move_on(past, new | {"action": action.unsqueeze(0)})}, action, extras

    def watch(self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, action: Tensor) -> Carry:
        """The carry after a row that somebody else answered."""
        new = self._new(obs, is_first) | {"action": action.unsqueeze(0)}
        return {"agent": carry["agent"], "past": _move_on(past_of(carry), new)}

    def _new(self, obs: dict[str, Tensor], is_first: Tensor) -> Columns:
        nothing = torch.zeros(0, len(is_first), self.spec.action.size, device=is_first.device)
        dtype = torch.float32 if self.spec.action.continuous else torch.int64
        rows = {f"obs/{key}": value.unsqueeze(0) for key, value in obs.items()}
        return rows | {"action": nothing.to(dtype), "is_first": is_first.unsqueeze(0)}

    def to_env(self, action: Tensor) -> Tensor:
        """As the agent."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """As the agent."""
        return self.agent.from_env(action)


def past_of(carry: Carry) -> Columns:
    """The rows before, [rows, B, ...], that a carry of `Recalling` holds."""
    return {name: rows.transpose(0, 1) for name, rows in carry["past"].items()}


def _move_on(past: Columns, new: Columns) -> Columns:
    """The rows before the next one, batch first; of what an episode's start has left behind, nothing."""
    opens = new["is_first"]
    return {
        name: torch.cat([rows.masked_fill(opens.view(1, -1, *[1] * (rows.ndim - 2)), 0), new[name].to(rows.dtype)])[
            1:
        ].transpose(0, 1)
        for name, rows in past.items()
    }


def recalling(agent: Any, spec: EnvSpec) -> Agent:
    """The agent, or where it has a history one that carries it along."""
    return Recalling(agent, spec) if getattr(agent, "history", None) else agent
