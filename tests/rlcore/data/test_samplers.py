"""The episode sampler and the online queue of new sequences, compared with plain lists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.config.compose import compose
from rlcore.data.replay import Replay
from rlcore.data.samplers import EpisodeSequences, Sampler, Sequences, Transitions
from rlcore.errors import RunError, UserError
from rlcore.store import checkpoint
from tests.rlcore.data.test_replay_oracle import WIDTH, Oracle, make_replay, row_numbers
from tests.soaking import always, heavy

pytestmark = heavy

LENGTH = 3


def complete_episodes(oracle: Oracle, size: int) -> list[tuple[int, int]]:
    """(place of the first row, rows) of the finished episodes of which the row before is stored too."""
    oldest, found = max(0, len(oracle.rows) - size), []
    for env in range(WIDTH):
        begin = 0
        for t, row in enumerate(oracle.rows):
            if (row["terminated"] | row["truncated"])[env]:
                if begin > oldest or oldest == begin == 0:
                    found.append((begin * WIDTH + env, t - begin + 1))
                begin = t + 1
    return found


def start_probabilities(episodes: list[tuple[int, int]], prioritized: bool) -> dict[int, float]:
    """Probability of each place where a sequence may start."""
    fit, expected = [(begin, rows) for begin, rows in episodes if rows >= LENGTH], Counter[int]()
    for begin, rows in fit:
        last = rows - LENGTH
        for offset in range(rows + 1 if prioritized else last + 1):
            place = begin + min(offset, last) * WIDTH
            expected[place] += 1 / len(fit) / (rows + 1 if prioritized else last + 1)
    return dict(expected)


def batches(replay: Replay, count: int, steps: int = 10**9) -> list[Any]:
    return [batch for _, batch in zip(range(count), replay.batches(steps), strict=False)]


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("rollout", [1, 7, 100])
def test_episodes_sampler_matches_expected_distribution(rollout: int, prioritized: bool) -> None:
    for seed in range(3):
        oracle, replay = Oracle(seed), make_replay(EpisodeSequences(LENGTH, prioritized), batch_size=4_000)
        for total in (1, 3) if rollout > 7 else (20, 30):  # partly filled, and after rows were overwritten
            for _ in range(total):
                replay.extend(*oracle.steps(rollout))
            expected = start_probabilities(complete_episodes(oracle, 40), prioritized)
            found = batches(replay, 2)
            counts = Counter(place for batch in found for place in row_numbers(batch.steps)[0].tolist())
            assert set(counts) == set(expected)
            drawn = counts.total()
            off = [(counts[place] - drawn * p) / (drawn * p * (1 - p)) ** 0.5 for place, p in expected.items() if p < 1]
            assert all(abs(deviation) < 5 for deviation in off)
            for batch in found:
                assert not batch.steps.is_first[1:].any()  # within one episode
                assert not (batch.steps.terminated | batch.steps.truncated)[:-1].any()


def test_episodes_are_cached_until_they_change() -> None:
    sampler = EpisodeSequences(LENGTH)
    oracle, replay = Oracle(0), make_replay(sampler)
    replay.extend(*oracle.steps(20))
    oracle.ends = 0.0
    replay.extend(*oracle.steps(1))
    before = replay.episodes()
    fitting = sampler._long_enough(before)
    assert len(fitting) > 0
    replay.extend(*oracle.steps(10))  # no episode ends, and none is overwritten
    assert replay.episodes() is before
    assert sampler._long_enough(replay.episodes()) is fitting
    replay.extend(*oracle.steps(40))
    assert len(replay.episodes().begins) == 0
    assert not sampler.can_draw(replay)


def test_episodes_sampler_defers_gradient_steps() -> None:
    oracle, replay = Oracle(0, ends=0.0), make_replay(EpisodeSequences(LENGTH), ratio=1.0, end=10 * WIDTH)
    for row in range(9):
        replay.extend(*oracle.steps(1))
        assert not [*replay.batches(row * WIDTH)]
    oracle.ends = 1.0
    oracle._next = oracle._row(np.zeros(WIDTH, bool), np.ones(WIDTH, bool))
    replay.extend(*oracle.steps(1))
    assert len([*replay.batches(9 * WIDTH)]) == 10 * WIDTH  # none is lost


def test_episodes_sampler_raises_without_long_episode() -> None:
    oracle, replay = Oracle(0, ends=0.0), make_replay(EpisodeSequences(LENGTH), end=2 * WIDTH)
    for row in range(2):
        replay.extend(*oracle.steps(1))
        if row == 0:
            assert not [*replay.batches(0)]
    with pytest.raises(RunError, match="6 gradient steps are due .* no sequence of 3 rows"):
        [*replay.batches(WIDTH)]


def new_sequences(sampler: Sampler, oracle: Oracle) -> list[int]:
    """Places of the sequences of all rows, in the order in which they become complete."""
    rows = [*oracle.rows, oracle._next]
    if isinstance(sampler, Transitions):
        at = range(len(oracle.rows) - sampler.length + 1)
        return [t * WIDTH + env for t in at for env in range(WIDTH) if not rows[t + 1]["is_first"][env]]
    if isinstance(sampler, Sequences):
        return [k * LENGTH * WIDTH + env for k in range(len(oracle.rows) // LENGTH) for env in range(WIDTH)]
    found = []
    for begin, length in sorted(complete_episodes(oracle, 10**9), key=lambda part: part[0] + part[1] * WIDTH):
        found += [begin + (length % LENGTH + k * LENGTH) * WIDTH for k in range(length // LENGTH)]
    return found


SAMPLERS = pytest.mark.parametrize(
    "sampler",
    [Transitions(), Transitions(3), Sequences(LENGTH), EpisodeSequences(LENGTH)],
    ids=["1", "n", "rows", "episodes"],
)


@SAMPLERS
def test_online_queue_yields_new_sequences_once_first(sampler: Sampler, tmp_path: Path) -> None:
    """After every third row, the buffer is saved and loaded into a new one, which must continue the queue."""
    oracle, how = Oracle(5), {"batch_size": 4, "ratio": 0.5, "online": True, "size": 60}
    replay, seen = make_replay(sampler, **how), []
    for row in range(200):
        replay.extend(*oracle.steps(1))
        handed = batches(replay, 100, row * WIDTH)
        waiting = set(new_sequences(sampler, oracle)) - set(seen)
        for batch in handed:
            places = row_numbers(batch.steps)[0].tolist()
            fresh = [place for place in places if place in waiting]
            # New sequences come first; the rest of a batch is sampled and may contain queued ones too.
            expected = sorted(waiting, key=new_sequences(sampler, oracle).index)[: len(places)]
            assert places[: len(expected)] == expected and len(fresh) >= len(expected)
            seen += expected
            waiting -= set(expected)
        if row % 3 == 0:
            path = checkpoint.save(tmp_path, row, replay.state_dict(), {}, replace=True)
            replay = make_replay(sampler, **how)
            replay.load_state_dict(checkpoint.load(path)[0])
    assert (
        len(seen) == len(set(seen)) and set(seen) == set(new_sequences(sampler, oracle)) - waiting and len(waiting) < 5
    )


@SAMPLERS
def test_online_queue_skips_overwritten_sequences(sampler: Sampler) -> None:
    oracle, replay = Oracle(2), make_replay(sampler, batch_size=2, ratio=0.01, online=True, size=20)
    handed: list[int] = []
    for row in range(300):
        replay.extend(*oracle.steps(1))
        oldest = max(0, row + 1 - 20) * WIDTH
        for batch in batches(replay, 9, row * WIDTH):
            places = row_numbers(batch.steps)[0].tolist()
            assert min(places) >= oldest
            handed += places
    assert len(handed) == 18 and handed == sorted(handed, key=new_sequences(sampler, oracle).index)


def test_online_queue_ignores_dataset_rows() -> None:
    oracle, replay = Oracle(1), make_replay(Sequences(LENGTH), batch_size=2, online=True, size=60)
    replay.extend(*oracle.steps(10))  # before any policy step
    for row in range(2 * LENGTH):
        replay.extend(*oracle.steps(1))
        firsts = [row_numbers(batch.steps)[0].tolist() for batch in batches(replay, WIDTH, row * WIDTH)]
        if row + 1 == LENGTH:
            assert [place for pair in firsts for place in pair][:WIDTH] == [10 * WIDTH + env for env in range(WIDTH)]


@always
@pytest.mark.parametrize("sampler", [EpisodeSequences(LENGTH), EpisodeSequences(LENGTH, True)], ids=["uniform", "ends"])
def test_episodes_sampler_resumes_with_same_draws(sampler: Sampler, tmp_path: Path) -> None:
    for rows in (5, 33, 41, 90, 147):
        oracle, one = Oracle(rows), make_replay(sampler, ratio=0.2, online=True)
        for row in range(rows):
            replay_rows = oracle.steps(1)
            one.extend(*replay_rows)
            batches(one, 99, row * WIDTH)
        other = make_replay(sampler, ratio=0.2, online=True)
        other.load_state_dict(checkpoint.load(checkpoint.save(tmp_path, rows, one.state_dict(), {}))[0])
        for row in range(rows, rows + 30):
            more = oracle.steps(1)
            pairs = []
            for replay in (one, other):
                replay.extend(*more)
                pairs.append(batches(replay, 99, row * WIDTH))
            assert len(pairs[0]) == len(pairs[1])
            for a, b in zip(*pairs, strict=True):
                assert (a.places == b.places).all() and torch.equal(a.steps.action, b.steps.action)


def test_buffer_type_episode_is_refused_for_sac() -> None:
    with pytest.raises(
        UserError, match="buffer.type=episode: not available for sac, which learns from single transitions"
    ):
        compose(["exp=sac", "buffer.type=episode"])


def test_online_refuses_sampler_without_queue() -> None:
    class Mine(Sampler):
        length = 1

    oracle, replay = Oracle(0), make_replay(Mine(), online=True)
    replay.extend(*oracle.steps(1))
    with pytest.raises(NotImplementedError, match="Mine does not implement `queue`"):
        batches(replay, 1)
