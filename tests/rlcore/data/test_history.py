"""Frame stacks and past actions, compared with one queue per environment that each episode start refills."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rlcore.data.history import HistoryWrapper, add_history, gather, gather_history, past_of, rows_before, with_history
from rlcore.data.replay import Replay
from rlcore.data.samplers import Sequences
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit
from rlcore.spec import ACTION, ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.train.collect import Collector
from rlcore.types import Batch, Trajectory
from tests.rlcore.data.test_replay import make_context
from tests.rlcore.envs.counting_envs import CountingEnvs
from tests.rlcore.train.test_collect import Counter

SPEC = EnvSpec("Some-v0", {"x": ArraySpec((2,), "uint8")}, ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,)))


def stack_by_queue(rows: np.ndarray, is_first: np.ndarray, window: Window) -> np.ndarray:
    """Stack rows [L, B, ...] to [L, B, frames, ...] one by one, as Gymnasium's wrappers do."""
    shown = np.zeros((*rows.shape[:2], window.frames, *rows.shape[2:]), rows.dtype)
    before = np.zeros_like(rows[0, 0]) if window.padded else None  # what the agent sees before the start of the episode
    for b in range(rows.shape[1]):
        queue: deque[Any] = deque(maxlen=window.frames * window.dilation)
        for t in range(len(rows)):
            if is_first[t, b] or not queue:
                queue.extend([rows[t, b] if before is None else before] * (window.frames * window.dilation))
            queue.append(rows[t, b])
            shown[t, b] = list(queue)[window.dilation - 1 :: window.dilation]
    return shown


def record(length: int, width: int, seed: int, ends: float) -> tuple[Tensor, Tensor, Tensor]:
    """Observations [L, B, 2], actions [L, B, 1] and is_first [L, B]; every environment starts an episode in row 0."""
    rng = np.random.default_rng(seed)
    obs, action = (
        rng.integers(0, 256, (length, width, 2), np.uint8),
        rng.standard_normal((length, width, 1), np.float32),
    )
    is_first = rng.random((length, width)) < ends
    is_first[0] = True
    return torch.from_numpy(obs), torch.from_numpy(action), torch.from_numpy(is_first)


def previous_actions(action: Tensor, is_first: Tensor) -> Tensor:
    """The action before each row, 0 at an episode start."""
    earlier = torch.cat([torch.zeros_like(action[:1]), action[:-1]])
    return torch.where(is_first.unsqueeze(-1), 0.0, earlier)


windows = st.builds(Window, st.integers(1, 5), st.integers(1, 4), st.booleans())
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(windows, st.integers(1, 12), st.integers(1, 3), seeds, st.floats(0, 0.6))
def test_gather_matches_queue_per_environment(window: Window, length: int, width: int, seed: int, ends: float) -> None:
    obs, _, is_first = record(length, width, seed, ends)
    expected = stack_by_queue(obs.numpy(), is_first.numpy(), window)
    for count in {1, length // 2 + 1, length}:
        frames = gather(obs, is_first, window, count)
        assert frames.dtype == torch.uint8
        np.testing.assert_array_equal(frames.numpy(), expected[length - count :])


def test_gather_matches_frames_by_hand() -> None:
    # Three frames, every second: rows t-4, t-2, t. An episode starts at row 3, which also stands for earlier rows.
    rows, opens = torch.arange(6).unsqueeze(-1), torch.tensor([1, 0, 0, 1, 0, 0], dtype=torch.bool).unsqueeze(-1)
    frames = gather(rows, opens, Window(3, 2), 6).squeeze(1)
    assert frames.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [3, 3, 3], [3, 3, 4], [3, 3, 5]]


class RecordingAgent(nn.Module):
    """Agent that records its observations and returns the actions of `script`."""

    def __init__(self, history: dict[str, Window], script: Tensor | None = None) -> None:
        super().__init__()
        self.history, self.script, self.seen = history, script, list[dict[str, Tensor]]()

    def initial(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size)

    def act(self, carry: Any, obs: Any, is_first: Tensor, rng: Any, greedy: bool = False) -> Any:
        self.seen.append(obs)
        assert self.script is not None
        return carry + 1, self.script[len(self.seen) - 1], {}

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def from_env(self, action: Tensor) -> Tensor:
        return action


@settings(max_examples=40, deadline=None)
@given(windows, windows, st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), seeds, st.floats(0, 0.6))
def test_history_wrapper_and_gather_history_match_queues(
    window: Window, actions: Window, first: int, second: int, width: int, seed: int, ends: float
) -> None:
    length = first + second + 1
    obs, action, is_first = record(length, width, seed, ends)
    history = {"x": window, ACTION: actions}
    expected = {
        "x": stack_by_queue(obs.numpy(), is_first.numpy(), window),
        ACTION: stack_by_queue(previous_actions(action, is_first).numpy(), is_first.numpy(), actions),
    }
    for key, each in history.items():
        if each.padded:  # a queue of ones has a zero where the window is padded
            ones = stack_by_queue(np.ones_like(is_first.numpy()), is_first.numpy(), each)
            expected[f"{key}_valid"] = ones
    recorder = RecordingAgent(history, action)
    agent = with_history(recorder, SPEC)
    assert isinstance(agent, HistoryWrapper)
    form = carry = agent.initial(width)
    for t in range(length):
        if t == first:
            past = past_of(carry)
        carry = fit(form, agent.act(carry, {"x": obs[t]}, is_first[t], None, False)[0])
        for key in expected:
            np.testing.assert_array_equal(recorder.seen[t][key].numpy(), expected[key][t])
    assert torch.equal(carry["agent"], torch.full((width,), float(length)))

    flags = torch.zeros(second, width), torch.zeros(second, width).bool(), torch.zeros(second, width).bool()
    steps = Trajectory({"x": obs[first:-1]}, action[first:-1], *flags, is_first[first:-1], past=past)
    last = Trajectory({"x": obs[-1]}, action[-1], *(flag[-1] for flag in flags), is_first[-1])
    batch = Batch(steps, last, 0)
    found, arrival = gather_history(batch, history, ["x"])
    order = torch.randperm(second * width, generator=torch.Generator().manual_seed(seed % 1000)).reshape(width, second)
    stacked, seen = found.at(order), add_history(batch, history)
    for key, values in expected.items():
        flat = values[first:-1].reshape(second * width, *values.shape[2:])
        np.testing.assert_array_equal(stacked[key].numpy(), flat[order.numpy()])
        np.testing.assert_array_equal(arrival[key].numpy(), values[-1])
        np.testing.assert_array_equal(seen.steps.obs[key].numpy(), values[first:-1])
        np.testing.assert_array_equal(seen.last.obs[key].numpy(), values[-1])


def test_append_keeps_actions_of_another_policy() -> None:
    obs, action, is_first = record(5, 2, 0, 0.2)
    history = {"x": Window(3), ACTION: Window(2)}
    acting = with_history(RecordingAgent(history, action), SPEC)
    watching = with_history(RecordingAgent(history), SPEC)
    assert isinstance(acting, HistoryWrapper) and isinstance(watching, HistoryWrapper)
    one, other = acting.initial(2), watching.initial(2)
    for t in range(5):
        one = acting.act(one, {"x": obs[t]}, is_first[t], None, False)[0]
        other = watching.append(other, {"x": obs[t]}, is_first[t], action[t])
    for name, rows in one["past"].items():
        assert torch.equal(rows, other["past"][name])


def test_empty_history_wraps_and_copies_nothing() -> None:
    agent = RecordingAgent({})
    assert with_history(agent, SPEC) is agent
    obs, action, is_first = record(4, 2, 0, 0.2)
    zeros = torch.zeros(3, 2)
    steps = Trajectory({"x": obs[:-1]}, action[:-1], zeros, zeros.bool(), zeros.bool(), is_first[:-1])
    last = Trajectory({"x": obs[-1]}, action[-1], zeros[0], zeros[0].bool(), zeros[0].bool(), is_first[-1])
    batch = Batch(steps, last, 0)
    found, arrival = gather_history(batch, {}, ["x"])
    assert found.rows["x"].data_ptr() == obs.data_ptr() and not found.frames and arrival["x"] is last.obs["x"]
    assert add_history(batch, {}) is batch


@pytest.mark.parametrize(
    ("history", "rows"),
    [({}, 0), ({"x": Window(1)}, 0), ({"x": Window(4, 2)}, 6), ({"x": Window(2), ACTION: Window(3)}, 3)],
)
def test_rows_before_covers_longest_window(history: dict[str, Window], rows: int) -> None:
    # Actions need one more row: the newest action belongs to the row before.
    assert rows_before(history) == rows


def test_add_history_uses_rows_before_replay_sample() -> None:
    """Sequences of a full replay buffer; each row of CountingEnvs contains environment, episode and age."""
    history = {"state": Window(3, 2), ACTION: Window(2)}
    envs = CountingEnvs((2, 3, 9))
    replay = Replay(make_context(), Sequences(4), size=20, batch_size=64, ratio=1.0, before=rows_before(history))
    collector = Collector(envs, Counter(), Noise(0, "policy"))
    for _ in range(15):
        replay.extend(*collector.collect(4))
    batch = next(replay.batches(1_000_000))
    seen = add_history(batch, history)
    for raw, frames, earlier in (
        (batch.steps.obs["state"], seen.steps.obs["state"], seen.steps.obs[ACTION]),
        (batch.last.obs["state"], seen.last.obs["state"], seen.last.obs[ACTION]),
    ):
        age = raw[..., 2:]
        assert torch.equal(frames[..., :2], raw[..., None, :2].expand_as(frames[..., :2]))  # of the same episode
        assert torch.equal(frames[..., 2], (age - torch.tensor([4.0, 2.0, 0.0])).clamp(min=0))
        assert earlier.shape[-2:] == (2, 1)
        assert not earlier[..., 1, :][age == 0].any() and not earlier[..., 0, :][age <= 1].any()
    # The previous action of a row is the action of the row before.
    after = seen.steps.obs[ACTION][1:, ..., 1, :]
    kept = ~batch.steps.is_first[1:]
    assert torch.equal(after[kept], batch.steps.action[:-1][kept]) and kept.any()
