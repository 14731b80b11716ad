"""The replay buffer, with environments whose observations contain environment, episode and age."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.data.dataset import as_collected, as_dataset
from rlcore.data.replay import Replay, stored_rows
from rlcore.data.samplers import EpisodeSequences, Sampler, Sequences, Transitions
from rlcore.data.steps import transitions
from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.spec import ArraySpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.train.collect import Collector
from rlcore.types import Context, SingleProcess
from tests.probes import q_learning
from tests.rlcore.envs.counting_envs import CountingEnvs
from tests.rlcore.train.test_collect import Counter

LENGTHS = (2, 3, 5)


def make_context() -> Context:
    config = RunConfig(algo=build(q_learning.Config, {"total_steps": 100}, "algo."), env=EnvConfig(id="x"), seed=1)
    return Context(config, CountingEnvs(LENGTHS).spec, Fabric(accelerator="cpu"), SingleProcess(), len(LENGTHS))


def make_replay(sampler: Sampler | None = None, **how: Any) -> Replay:
    return Replay(make_context(), sampler or Transitions(), **{"size": 50, "batch_size": 64, "ratio": 1.0} | how)


def fill(replay: Replay, rollouts: int, length: int = 4) -> Collector:
    collector = Collector(CountingEnvs(LENGTHS), Counter(), Noise(0, "policy"))
    for _ in range(rollouts):
        replay.extend(*collector.collect(length))
    return collector


def sample_batches(replay: Replay, count: int = 1) -> list[Any]:
    found = []
    for batch in replay.batches(1_000_000):
        found.append(batch)
        if len(found) == count:
            break
    return found


def test_replay_sample_never_crosses_episode_end() -> None:
    replay = make_replay()
    fill(replay, 10)
    (batch,) = sample_batches(replay)
    before, after = batch.steps.obs["state"][0], batch.last.obs["state"]
    assert torch.equal(before[:, :2], after[:, :2])  # the same environment, the same episode
    assert torch.equal(before[:, 2] + 1, after[:, 2]) and torch.equal(batch.last.reward, after[:, 2])
    ends = torch.tensor(LENGTHS)[after[:, 0].long()] == after[:, 2]
    assert torch.equal(batch.last.terminated | batch.last.truncated, ends)


def test_replay_samples_stored_steps_uniformly() -> None:
    replay = make_replay(size=9, batch_size=4_000)
    fill(replay, 5)  # rows 0 to 19, of which 11 to 19 are still stored; step 19 leads to the newest time step
    steps, _ = Collector(CountingEnvs(LENGTHS), Counter(), Noise(0, "policy")).collect(20)
    ended = steps.terminated | steps.truncated
    rows = steps.obs["state"].tolist()
    allowed = {tuple(rows[t][k]) for t in range(11, 20) for k in range(3) if not ended[t, k]}
    seen: dict[tuple[float, ...], int] = {}
    for batch in sample_batches(replay, 5):
        for row in batch.steps.obs["state"][0].tolist():
            seen[tuple(row)] = seen.get(tuple(row), 0) + 1
    assert set(seen) == allowed
    share = 20_000 / len(allowed)
    assert all(abs(count - share) < 6 * share**0.5 for count in seen.values())


@pytest.mark.parametrize(
    ("ratio", "starts", "expected"),
    [(1.0, 0, [12, 12, 12]), (0.5, 12, [0, 6, 6]), (0.3, 5, [2, 3, 4]), (2, 20, [0, 8, 24])],
)
def test_replay_batches_follow_replay_ratio(ratio: float, starts: int, expected: list[int]) -> None:
    replay = make_replay(ratio=ratio, starts=starts)
    collector = Collector(CountingEnvs(LENGTHS), Counter(), Noise(0, "policy"))
    counts = []
    for _ in range(3):
        before = collector.policy_steps
        replay.extend(*collector.collect(4))
        due = replay.due(before)
        counts.append(len(list(replay.batches(before))))
        assert (due, replay.due(before)) == (counts[-1], 0)
    assert counts == expected


@pytest.mark.parametrize("every", [1, 6, 12, 30, 47, 1_000])
@pytest.mark.parametrize(("ratio", "starts"), [(0.3, 5), (1, 0), (2.5, 50)])
def test_train_every_keeps_total_gradient_steps(every: int, ratio: float, starts: int) -> None:
    replay = make_replay(ratio=ratio, starts=starts, pretrain=7, every=every, end=100 * 3)
    collector = Collector(CountingEnvs(LENGTHS), Counter(), Noise(0, "policy"))
    counts = []
    for _ in range(100):
        before = collector.policy_steps
        replay.extend(*collector.collect(1))
        counts.append(len(list(replay.batches(before))))
    assert sum(counts) == int(ratio * (300 - starts) + 1e-9) + 7 == replay.count_batches(300)
    trainings = {3 * (row + 1) for row, count in enumerate(counts) if count}
    due = {3 * math.ceil(multiple / 3) for multiple in range(every, 301, every)} | {300}  # of 3 environments
    assert trainings <= due and max(trainings) == 300
    if every * ratio >= 1:
        assert trainings == {at for at in due if at > starts}


def test_replay_sequences_have_consecutive_rows() -> None:
    replay = make_replay(Sequences(6))
    fill(replay, 10)
    (batch,) = sample_batches(replay)
    steps = batch.steps
    assert steps.reward.shape == (6, 64) and batch.last.reward.shape == (64,)
    state = torch.cat([steps.obs["state"], batch.last.obs["state"][None]])
    ended = steps.terminated | steps.truncated
    expected = torch.where(ended, 0.0, state[:-1, :, 2] + 1)
    assert torch.equal(state[1:, :, 2], expected) and (state[1:, :, 0] == state[:-1, :, 0]).all()


def test_replay_state_dict_restores_exactly() -> None:
    one, other = make_replay(size=40), make_replay(size=40)
    collector = fill(one, 25)
    before = [batch.steps.action for batch in sample_batches(one, 2)]
    assert len(before) == 2
    other.load_state_dict(nested_state.decode(*nested_state.encode(one.state_dict())))
    more = collector.collect(4)
    for replay in (one, other):
        replay.extend(*more)
    pairs = list(zip(sample_batches(one, 5), sample_batches(other, 5), strict=True))
    assert all(torch.equal(a.steps.obs["state"], b.steps.obs["state"]) for a, b in pairs)
    assert nested_state.encode(one.state_dict()) == nested_state.encode(other.state_dict())


def test_replay_state_dict_restores_into_larger_buffer() -> None:
    small, larger, straight = make_replay(size=64), make_replay(size=640), make_replay(size=640)
    fill(small, 12)
    collector = fill(straight, 12)
    larger.load_state_dict(nested_state.decode(*nested_state.encode(small.state_dict())))
    more = collector.collect(4)
    for replay in (larger, straight):
        replay.extend(*more)
        replay.taken = 0
    for a, b in zip(sample_batches(larger, 5), sample_batches(straight, 5), strict=True):
        assert torch.equal(a.steps.obs["state"], b.steps.obs["state"]) and torch.equal(a.steps.action, b.steps.action)
    again = make_replay(size=640)
    again.load_state_dict(nested_state.decode(*nested_state.encode(larger.state_dict())))
    assert nested_state.encode(again.state_dict()) == nested_state.encode(larger.state_dict())


class Shifted(Counter):
    """Agent whose actions -20 to -17 are 10 to 13 of the environment."""

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0] + 30

    def from_env(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, None] - 30


def make_dataset(rows: int, *lengths: int) -> Any:
    """A dataset [rows, B] as `load_dataset` returns it, with actions of the environment; episode numbers from 100."""
    envs = CountingEnvs(lengths)
    envs.episode += 100
    steps, _ = Collector(envs, Counter(), Noise(1, "policy")).collect(rows)
    steps.action = steps.action - 20
    return as_dataset(steps, Shifted(), EnvConfig(id=""))


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("lengths", [LENGTHS, (4,), (2, 9, 4, 7, 3)], ids=["as wide", "narrower", "wider"])
def test_replay_after_dataset_weights_only_real_transitions(lengths: tuple[int, ...], length: int) -> None:
    replay, context = (
        make_replay(Transitions() if length == 1 else Sequences(length), size=200, batch_size=2_000),
        make_context(),
    )
    rows = make_dataset(19, *lengths)
    steps, last = as_collected(rows, Shifted(), context)
    assert steps.reward.shape == ((19 * len(lengths)) // 3 - 1, 3)
    replay.extend(steps, last)
    fill(replay, 5)
    (batch,) = sample_batches(replay)
    state, step = torch.cat([batch.steps.obs["state"], batch.last.obs["state"][None]]), transitions(batch)
    counts = step.weight > 0
    assert length > 1 or counts.all()
    same = (state[1:, :, :2] == state[:-1, :, :2]).all(-1) & (state[1:, :, 2] == state[:-1, :, 2] + 1)
    assert torch.equal(same, counts) and counts.sum() > 1_000
    old = state[:-1, :, 1] >= 100
    assert (old & counts).any() and (~old & counts).any()
    assert (batch.steps.action[old] < 0).all() and (batch.steps.action[~old] >= 0).all()
    seen = {tuple(row) for row in state[:-1][counts & old].tolist()}
    there = {tuple(row) for row in rows["obs", "state"].reshape(-1, 3).tolist()}
    assert seen <= there and len(seen) > len(there) / 2


def test_replay_after_dataset_resumes_exactly(tmp_path: Path) -> None:
    one, other = make_replay(size=64), make_replay(size=64)
    one.extend(*as_collected(make_dataset(30, *LENGTHS), Shifted(), make_context()))
    collector = fill(one, 3)
    other.load_state_dict(checkpoint.load(checkpoint.save(tmp_path, 1, one.state_dict(), {}))[0])
    more = collector.collect(4)
    for replay in (one, other):
        replay.extend(*more)
    for a, b in zip(sample_batches(one, 5), sample_batches(other, 5), strict=True):
        assert torch.equal(a.steps.obs["state"], b.steps.obs["state"])


def test_as_collected_splits_dataset_between_ranks() -> None:
    rows, parts = make_dataset(20, 2, 3, 5, 7), []
    for rank in (0, 1):
        ranks = dataclasses.make_dataclass("Ranks", ["rank", "size"])(rank, 2)
        parts.append(as_collected(rows, Shifted(), dataclasses.replace(make_context(), ranks=ranks))[0])
    first, second = ({tuple(row) for row in part.obs["state"].reshape(-1, 3).tolist()} for part in parts)
    assert parts[0].reward.shape == (12, 3) and not first & second


def test_as_collected_refuses_dataset_of_other_spec() -> None:
    rows, context = make_dataset(9, 2, 3, 5), make_context()
    spec = context.spec
    array = ArraySpec((4,), "float32")
    for change, sentence in (
        (
            {"obs": {"rgb": array}},
            r"no observation 'rgb', which the environment has \(observation keys of the dataset: state\)",
        ),
        ({"obs": {"state": array}}, r"observation 'state' of shape \[3\], but the environment has \[4\]"),
        ({"action": dataclasses.replace(spec.action, shape=(2,))}, r"actions of shape \[\], .* \[2\]"),
    ):
        with pytest.raises(UserError, match=f"^the dataset has {sentence}"):
            as_collected(rows, Shifted(), dataclasses.replace(context, spec=dataclasses.replace(spec, **change)))
    with pytest.raises(UserError, match="^the dataset has 3 rows, but 3 environments need at least 2 rows each"):
        as_collected(rows[:1], Shifted(), context)


def test_as_collected_takes_extras_that_fit() -> None:
    """The extra output `value` of a row is the sum of its observation, also after the rows were cut into pieces."""
    rows, context = make_dataset(19, 2, 3, 5, 7), make_context()
    fitting = {"value": ArraySpec((), "float32")}
    replay = make_replay(size=200, extras=fitting)
    replay.extend(*as_collected(rows, Shifted(), context, fitting))
    kept = replay.copy_rows()
    assert kept.reward.shape == (25, 3) and (kept.obs["state"].sum(-1) >= 100).all()
    assert torch.equal(kept.extras["value"][:-1], kept.obs["state"].sum(-1)[:-1])
    for other in (
        {"value": ArraySpec((), "float16")},
        {"value": ArraySpec((2,), "float32")},
        fitting | {"absent": ArraySpec((), "float32")},
    ):
        assert not as_collected(rows, Shifted(), context, other)[0].extras


def test_copy_rows_are_in_time_order() -> None:
    replay = make_replay(size=9)
    fill(replay, 5)
    rows = replay.copy_rows()
    assert rows.reward.shape == (9 + 1, 3)
    age, first = rows.obs["state"][..., 2], rows.is_first
    assert torch.equal(age[1:], torch.where(first[1:], 0.0, age[:-1] + 1))


def test_stored_rows_are_those_of_the_buffer(tmp_path: Path) -> None:
    replay = make_replay(size=64, extras={"count": ArraySpec((), "float32")})
    fill(replay, 41)
    path = checkpoint.save(tmp_path, 1, replay.state_dict(), {})
    stored, rows = stored_rows(checkpoint.load(path)[0]), replay.copy_rows()
    assert len(stored.reward) >= len(rows.reward) == 65  # the state also has the rest of its oldest chunk
    for theirs, ours in ((stored.obs["state"], rows.obs["state"]), (stored.action, rows.action)):
        assert torch.equal(theirs[-65:], ours)
    count = stored.extras["count"][-65:-1]  # the agent has not acted in the last row
    assert torch.equal(count, rows.extras["count"][:-1]) and torch.equal(count, rows.obs["state"][:-1, :, 2] + 1)
    with pytest.raises(UserError, match=r"^copy_rows\(\): the replay buffer has no rows; collect or load rows first$"):
        make_replay().copy_rows()


def test_replay_restores_from_chunks_at_any_position(tmp_path: Path) -> None:
    for rollouts in (3, 30, 61):
        one, other = make_replay(size=128), make_replay(size=128)
        collector = fill(one, rollouts)
        path = checkpoint.save(tmp_path, rollouts, one.state_dict(), {})
        other.load_state_dict(checkpoint.load(path)[0])
        other.load_state_dict(other.state_dict())  # the chunks are views of the arrays that are overwritten
        more = collector.collect(4)
        for replay in (one, other):
            replay.extend(*more)
        for a, b in zip(sample_batches(one, 3), sample_batches(other, 3), strict=True):
            assert torch.equal(a.steps.obs["state"], b.steps.obs["state"])
            assert torch.equal(a.last.reward, b.last.reward)
        assert nested_state.encode(one.state_dict()) == nested_state.encode(other.state_dict())


def test_checkpoint_stores_replay_rows_outside_tensors_file(tmp_path: Path) -> None:
    replay = make_replay(size=128)
    fill(replay, 30)
    path = checkpoint.save(tmp_path, 1, {"buffer": replay.state_dict()}, {})
    rows = replay.copy_rows().obs["state"].nbytes
    assert (path / "learning" / "tensors.safetensors").stat().st_size < 100 < rows


def test_replay_sampling_never_reads_from_device() -> None:
    """Reading a tensor of device `meta` fails; on a GPU, reading would wait for the device."""
    replay, plain = make_replay(device="meta"), make_replay()
    replay.target = torch.device("meta")
    fill(replay, 10)
    fill(plain, 10)
    for batch, expected in zip(sample_batches(replay, 20), sample_batches(plain, 20), strict=True):
        assert batch.steps.obs["state"].is_meta and batch.steps.obs["state"].shape == expected.steps.obs["state"].shape
    assert replay.rng.bit_generator.state == plain.rng.bit_generator.state


def test_replay_refuses_size_below_sequence_length() -> None:
    with pytest.raises(ValueError, match="too small for sequences of 6 steps"):
        make_replay(Sequences(6), size=6)


@pytest.mark.parametrize("sampler", [Transitions(), EpisodeSequences(2)], ids=["transitions", "episodes"])
@pytest.mark.parametrize("rollouts", [4, 5, 6, 30])
def test_replay_keeps_arrivals_of_unsampled_rollouts(sampler: Sampler, rollouts: int) -> None:
    """Compares a buffer that is read only at the end with one that is read after each rollout."""
    late, early = make_replay(sampler), make_replay(sampler)
    collectors = [Collector(CountingEnvs(LENGTHS), Counter(), Noise(0, "policy")) for _ in range(2)]
    for _ in range(rollouts):
        for replay, collector in zip((late, early), collectors, strict=True):
            replay.extend(*collector.collect(1))
        early.state_dict()
    rows = np.arange(late.oldest * late.width, late.written * late.width)
    np.testing.assert_array_equal(late.only_resets(rows), early.only_resets(rows))
    for found, expected in zip(late.episodes(), early.episodes(), strict=True):
        np.testing.assert_array_equal(found, expected)
    for a, b in zip(sample_batches(late, 4), sample_batches(early, 4), strict=True):
        assert torch.equal(a.steps.obs["state"], b.steps.obs["state"])
        assert torch.equal(a.last.obs["state"], b.last.obs["state"])
        assert torch.equal(a.last.terminated, b.last.terminated)


@pytest.mark.parametrize("size", [50, 10**18])
def test_replay_capacity_is_limited_to_run_length(size: int) -> None:
    run, other = make_replay(size=size, end=40 * 3, ratio=1 / 3), make_replay(ratio=1 / 3)
    batches = []
    for replay in (run, other):
        fill(replay, 10)
        batches.append(sample_batches(replay)[0])
    assert run.capacity < 50 < other.capacity
    assert torch.equal(*(batch.steps.action for batch in batches))
    assert (batches[0].places == batches[1].places).all()
