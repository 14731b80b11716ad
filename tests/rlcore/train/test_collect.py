from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.config.groups import EnvConfig
from rlcore.data.steps import transform_reward
from rlcore.functional.noise import Noise
from rlcore.store.checkpoint import nested_state
from rlcore.train.collect import Collector
from tests.rlcore.envs.counting_envs import CountingEnvs


class Counter:
    """Agent that draws its actions from the noise stream and counts its calls in the carry."""

    def initial(self, batch_size: int) -> tuple[Tensor]:
        return (torch.zeros(batch_size),)

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Any, greedy: bool) -> Any:
        count = torch.where(is_first, 0.0, carry[0]) + 1
        action = torch.from_numpy(rng.host.integers(0, 4, (len(is_first), 1)))
        return (count,), action, {"value": obs["state"].sum(-1), "count": count}

    def to_env(self, action: Tensor) -> Tensor:
        return action[:, 0] + 10

    def from_env(self, action: Tensor) -> Tensor:
        return action[:, None] - 10


def collector(*lengths: int, **more: Any) -> Collector:
    return Collector(CountingEnvs(lengths), Counter(), Noise(0, "policy"), **more)


def test_collect_aligns_rows_as_documented() -> None:
    steps, last = collector(2, 3).collect(5)
    # Environment 0 ends at age 2 (terminated), 1 at age 3 (truncated); the row after an end opens the next episode.
    assert steps.obs["state"][:, 0, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]
    assert steps.reward.T.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert steps.terminated.T.tolist() == [[0, 0, 1, 0, 0], [0] * 5]
    assert steps.truncated.T.tolist() == [[0] * 5, [0, 0, 0, 1, 0]]
    assert steps.is_first.T.tolist() == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 1]]
    assert last.obs["state"].tolist() == [[0, 1, 2], [1, 1, 1]]
    assert last.terminated.tolist() == [True, False] and last.reward.tolist() == [2, 1]


def test_collect_stores_extras_with_their_observation() -> None:
    steps, _ = collector(2, 3).collect(6)
    assert torch.equal(steps.extras["value"], steps.obs["state"].sum(-1))


def test_collect_stores_agent_actions_and_sends_environment_actions() -> None:
    one = collector(2, 3)
    steps, _ = one.collect(6)
    assert (np.stack(one.envs.seen[1:]) == steps.action.squeeze(-1).numpy() + 10).all()


def test_env_steps_exclude_reset_rows() -> None:
    one = collector(2, 3)
    one.collect(5)
    # Environment 0: rows 0, 1, 3, 4; environment 1: rows 0, 1, 2, 4.
    assert one.env_steps == 8
    total = sum(episode.length for episode in one.envs.pop_episodes())
    # Finished episodes and the ages of the open ones.
    assert total + sum(np.where(one.envs.over, 0, one.envs.age)) == one.env_steps


def test_rollouts_join_without_gap() -> None:
    whole, parts = collector(2, 3), collector(2, 3)
    expected, _ = whole.collect(8)
    pieces = [parts.collect(n)[0] for n in (3, 1, 4)]
    # Storage is shared between calls of one length only; each piece here has its own.
    for name in ("reward", "terminated", "truncated", "is_first", "action"):
        assert torch.equal(torch.cat([getattr(p, name) for p in pieces]), getattr(expected, name)), name
    assert torch.equal(torch.cat([p.obs["state"] for p in pieces]), expected.obs["state"])


def test_carry_restarts_with_every_episode() -> None:
    one = collector(2, 3)
    steps, _ = one.collect(4)
    assert steps.carry[0].tolist() == [0, 0]
    # The carry counts the observations of the episode.
    assert torch.equal(steps.extras["count"], steps.obs["state"][..., 2] + 1)
    again, _ = one.collect(4)
    assert again.carry[0].tolist() == [1, 4]


def test_collect_copies_observation_of_reused_array() -> None:
    one = collector(5)
    _, last = one.collect(2)
    kept = last.obs["state"].clone()
    one.envs.buffer[:] = -1
    assert torch.equal(last.obs["state"], kept)
    steps, _ = one.collect(3)
    assert steps.obs["state"][0].tolist() == kept.tolist()


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"clip_rewards": True}, torch.tanh),
        ({"reward_scale": 0.1}, lambda reward: 0.1 * reward),
        ({"reward_scale": 0.1, "clip_rewards": True}, lambda reward: torch.tanh(0.1 * reward)),
    ],
)
def test_rewards_are_transformed_only_for_learner(settings: Any, seen: Any) -> None:
    learned = functools.partial(transform_reward, EnvConfig("counting", **settings))
    steps, last = collector(3, learned=learned).collect(3)
    torch.testing.assert_close(steps.reward[:, 0], seen(torch.tensor([0.0, 1.0, 2.0])))
    torch.testing.assert_close(last.reward, seen(torch.tensor([3.0])))


def test_collector_resumes_to_same_rows() -> None:
    one = collector(2, 3)
    one.collect(4)
    state = nested_state.encode(one.state_dict())
    expected, _ = one.collect(7)
    other = Collector(CountingEnvs((2, 3)), Counter(), Noise(99, "policy"))
    other.load_state_dict(nested_state.decode(*state))
    found, _ = other.collect(7)
    for name in ("reward", "terminated", "truncated", "is_first", "action"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.extras["count"], expected.extras["count"])
    assert other.env_steps == one.env_steps


def test_collector_state_before_first_row_can_be_saved() -> None:
    one, other = collector(2, 3), collector(2, 3)
    other.load_state_dict(nested_state.decode(*nested_state.encode(one.state_dict())))
    assert torch.equal(one.collect(3)[0].action, other.collect(3)[0].action)


class OnADevice(CountingEnvs):
    """Environments that return tensors, like those that compute in batches on a GPU."""

    def reset(self) -> Any:
        return self._as_tensors(super().reset())

    def step(self, action: Any) -> Any:
        if isinstance(action, Tensor):
            return self._as_tensors(super().step(np.array(action.tolist())))
        return super().step(action)  # called by reset

    @staticmethod
    def _as_tensors(arrival: Any) -> Any:
        flags = [torch.tensor(getattr(arrival, name)) for name in ("reward", "terminated", "truncated", "is_first")]
        return type(arrival)({k: torch.tensor(v) for k, v in arrival.obs.items()}, *flags)


def test_collect_keeps_tensors_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, expected_last = collector(2, 3).collect(7)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", None)
        patch.setattr(Counter, "act", lambda *_: ((torch.zeros(2),), torch.ones(2, 1, dtype=torch.int64), {}))
        one = Collector(OnADevice((2, 3)), Counter(), Noise(0, "policy"))
        steps, last = one.collect(7)
    for name in ("reward", "terminated", "truncated", "is_first"):
        assert torch.equal(getattr(steps, name), getattr(expected, name)), name
    assert torch.equal(steps.obs["state"], expected.obs["state"])
    assert torch.equal(last.obs["state"], expected_last.obs["state"])
    assert one.env_steps == collector_steps((2, 3), 7)


def collector_steps(lengths: tuple[int, ...], rows: int) -> int:
    """Return the number of actions in the given rows: an episode of n actions has n + 1 rows."""
    return sum(rows - rows // (length + 1) for length in lengths)


def test_random_actions_are_uniform_from_own_stream() -> None:
    one = collector(2, 3, prefill=Noise(0, "prefill"))
    before = one.rng.state_dict()
    steps, _ = one.collect(2_000, random=True)
    assert one.rng.state_dict() == before and steps.extras == {}
    assert one.carry[0].tolist() == [0, 0]  # the agent did not act
    counts = torch.bincount(steps.action.flatten(), minlength=4)
    assert len(counts) == 4 and (counts - 1_000).abs().max() < 6 * 1_000**0.5
    env_actions = np.stack(one.envs.seen[1:])  # the first is from reset
    assert np.array_equal(env_actions, steps.action[..., 0].numpy() + 10)


def test_prefill_resumes_to_same_random_actions() -> None:
    whole, other = (collector(2, 3, prefill=Noise(0, "prefill")) for _ in range(2))
    whole.collect(5, random=True)
    other.load_state_dict(whole.state_dict())
    assert torch.equal(whole.collect(9, random=True)[0].action, other.collect(9, random=True)[0].action)
