"""Observation history: past observations and actions that an agent sees in addition to the newest observation.

An agent that uses past data has an attribute `history`: key -> `Window`. The key is an observation key, or ACTION for
the agent's own past actions. For this key, `act` and the losses receive the last frames, [frames, *shape], instead of
the newest one only; past actions are [frames, A]. In row t, frame j of n frames (frame n-1 is the newest) is

    row  t - min((n-1-j) · dilation, age[t])        age: rows since the first row of the episode

Frames never come from an earlier episode: the first row of the episode is repeated instead. Actions before the start of
the episode are zeros.

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
from rlcore.spec import ACTION, EnvSpec, Window
from rlcore.types import Batch, Carry

History = Mapping[str, Window]
Columns = dict[str, Tensor]  # obs/<key>, action and is_first, [rows, B, ...]


def rows_before(history: History) -> int:
    """Return how many rows before a row are needed for all windows of a history."""
    return max((window.reach + (key == ACTION) for key, window in history.items()), default=0)


def gather(rows: Tensor, is_first: Tensor, window: Window, count: int) -> Tensor:
    """Return the frames that a window contains in each of the last `count` rows.

    Args:
        rows: [L, B, ...].
        is_first: [L, B] bool, True if a row is the first of an episode.
        window: number of frames, and distance between them in rows.
        count: T, at most L.

    Returns:
        [T, B, frames, ...], the newest frame last. No frame is older than row 0.
    """
    return _take(rows.flatten(0, 1), _places(is_first, window, count))


def _places(is_first: Tensor, window: Window, count: int) -> Tensor:
    """Return the indices of the frames of the last `count` rows: [count, B, frames] int64, into L·B flattened rows."""
    length, width = is_first.shape
    index = torch.arange(length, device=is_first.device).unsqueeze(-1)
    opened = torch.where(is_first, index, 0)
    # Acting needs only one row. In this case `amax` gives the same result, and every compiler backend supports it.
    start = opened.cummax(0).values[length - count :] if count > 1 else opened.amax(0, keepdim=True)
    newest = index[length - count :]
    back = torch.arange(window.frames - 1, -1, -1, device=is_first.device) * window.dilation
    rows = newest.unsqueeze(-1) - torch.minimum(back, (newest - start).unsqueeze(-1))
    return rows * width + torch.arange(width, device=is_first.device).unsqueeze(-1)


def _last(rows: Tensor, count: int) -> Tensor:
    return rows[len(rows) - count :]


def _column(key: str, window: Window, past: Columns, new: Columns) -> tuple[Tensor, Tensor]:
    """Return the rows [reach + T, B, ...] that are needed for the window of a key, and their `is_first`."""
    opens = torch.cat([_last(past["is_first"], window.reach), new["is_first"]])
    if key != ACTION:
        return torch.cat([_last(past[f"obs/{key}"], window.reach), new[f"obs/{key}"]]), opens
    rows = torch.cat([_last(past["action"], window.reach + 1), new["action"]])  # the action before each row
    return rows.masked_fill(opens.unsqueeze(-1), 0), opens


class SamplesWithHistory(NamedTuple):
    """N independent samples (observations) with their history; frames that samples share are stored only once.

    Attributes:
        rows: key -> [S, ...] as returned by the environment: the rows of the N samples and, for a key with a window,
            also past rows.
        places: key with a window -> [N, frames] int64, the indices of the sample's frames in `rows`.
    """

    rows: dict[str, Tensor]
    places: dict[str, Tensor]

    def at(self, index: Tensor) -> dict[str, Tensor]:
        """Return the observations of the samples with indices `index` [*M] int64.

        The result is key -> [*M, ...], or [*M, frames, ...] for a key with a window.
        """
        rows, places = self
        return {key: _take(row, _take(places[key], index) if key in places else index) for key, row in rows.items()}


def _take(rows: Tensor, places: Tensor) -> Tensor:
    return rows.index_select(0, places.flatten()).unflatten(0, places.shape)


def gather_history(batch: Batch, history: History, keys: Iterable[str]) -> tuple[SamplesWithHistory, dict[str, Tensor]]:
    """Return the T·B rows of a batch as N = T·B samples with their history, without copying each frame.

    Only keys with a window are copied, and each of their rows only once.

    Args:
        batch: [T, B], with observations as returned by the environment, and the rows before them in `past`.
        history: history of the agent.
        keys: observation keys that the agent reads.

    Returns:
        The samples, with these keys and also ACTION if the history has it. The observations of the time step after the
        batch as the agent sees them: key -> [B, ...] or [B, frames, ...].
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
    """Return the batch with its observations as the agent sees them: [T, B, frames, ...] for keys with a window.

    Every frame is copied. Use this function for batches of a replay buffer, and for rollouts that are used only once;
    use `gather_history` for rollouts that are used in several epochs.
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
    """Wrapper that adds past observations and actions to the input of an agent that has a `history`.

    Its carry is {"agent": carry of the agent, "past": past rows [B, rows, ...]}.

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
        """Call the agent's `act` with its history. `obs`: key -> [B, ...] as returned by the environment."""
        past, new = past_of(carry), self._new(obs, is_first)
        seen = dict(obs)
        for key, window in self.history.items():
            seen[key] = gather(*_column(key, window, past, new), window, 1)[0]
        own, action, extras = self.agent.act(carry["agent"], seen, is_first, rng, greedy)
        return {"agent": own, "past": _move_on(past, new | {"action": action.unsqueeze(0)})}, action, extras

    def append(self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, action: Tensor) -> Carry:
        """Return the carry after a row whose action was not chosen by this agent, for example a random action."""
        new = self._new(obs, is_first) | {"action": action.unsqueeze(0)}
        return {"agent": carry["agent"], "past": _move_on(past_of(carry), new)}

    def _new(self, obs: dict[str, Tensor], is_first: Tensor) -> Columns:
        nothing = torch.zeros(0, len(is_first), self.spec.action.size, device=is_first.device)
        dtype = torch.float32 if self.spec.action.continuous else torch.int64
        rows = {f"obs/{key}": value.unsqueeze(0) for key, value in obs.items()}
        return rows | {"action": nothing.to(dtype), "is_first": is_first.unsqueeze(0)}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions as `Agent.to_env` does."""
        return self.agent.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions as `Agent.from_env` does."""
        return self.agent.from_env(action)


def past_of(carry: Carry) -> Columns:
    """Return the past rows [rows, B, ...] that the carry of a `HistoryWrapper` contains."""
    return {name: rows.transpose(0, 1) for name, rows in carry["past"].items()}


def _move_on(past: Columns, new: Columns) -> Columns:
    """Return the past rows [B, rows, ...] for the next time step: append the new row, and remove the oldest one.

    If the new row starts an episode, the rows before it are set to zero.
    """
    opens = new["is_first"]
    return {
        name: torch.cat([rows.masked_fill(opens.view(1, -1, *[1] * (rows.ndim - 2)), 0), new[name].to(rows.dtype)])[
            1:
        ].transpose(0, 1)
        for name, rows in past.items()
    }


def with_history(agent: Any, spec: EnvSpec) -> Agent:
    """Return the agent, wrapped in `HistoryWrapper` if the agent has a history."""
    return HistoryWrapper(agent, spec) if getattr(agent, "history", None) else agent
