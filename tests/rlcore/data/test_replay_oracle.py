"""The replay buffer, compared with plain lists: distribution of samples, their contents, and `write_back`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.config.groups import BufferConfig
from rlcore.data.replay import Replay
from rlcore.data.ring import DeviceRing
from rlcore.data.samplers import Sampler, Sequences, Transitions
from rlcore.errors import DiskFault, RunError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.types import SingleProcess, Trajectory
from tests.rlcore.data.test_replay import make_context
from tests.soaking import always, heavy

pytestmark = heavy

WIDTH = 3
IMAGE = ArraySpec((20, 20, 3), "uint8")  # stored in an array of its own
SPEC = EnvSpec(
    "x",
    {"state": ArraySpec((3,), "float32"), "rgb": IMAGE},
    ActionSpec("Box", (2,), "float32", low=(-1.0,) * 2, high=(1.0,) * 2),
)
EXTRAS = {"latent": ArraySpec((2, 2), "float32"), "logprob": ArraySpec((), "float32")}
CARRY = {"h": (torch.full((1, 2), -1.0), torch.zeros(1, 1, dtype=torch.int64))}


class Oracle:
    """List of all rows, and the rows at which a sample may start."""

    def __init__(self, seed: int, ends: float = 0.2) -> None:
        self.rng, self.ends, self.rows = np.random.default_rng(seed), ends, []
        self._next = self._row(np.ones(WIDTH, bool), np.zeros(WIDTH, bool))

    def _row(self, first: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
        t, cuts = len(self.rows), self.rng.random(WIDTH) < 0.5
        number = torch.arange(WIDTH) + WIDTH * t
        return {
            "state": torch.stack([number, torch.full((WIDTH,), t), torch.arange(WIDTH)], 1).float(),
            "rgb": number[:, None, None, None].expand(WIDTH, *IMAGE.shape).to(torch.uint8),
            "action": torch.stack([number, -number], 1).float(),
            "reward": number.float() / 7,
            "terminated": torch.from_numpy(ended & cuts),
            "truncated": torch.from_numpy(ended & ~cuts),
            "is_first": torch.from_numpy(first),
            "latent": number[:, None, None].expand(WIDTH, 2, 2).float() + 0.5,
            "logprob": -number.float(),
            "carry": {"h": (torch.stack([number, number], 1).float(), number[:, None])},
        }

    def steps(self, count: int) -> tuple[Trajectory, Trajectory]:
        """The next `count` rows [T, B], and the time step after them."""
        for _ in range(count):
            row = self._next
            self.rows.append(row)
            ended = (row["terminated"] | row["truncated"]).numpy()
            self._next = self._row(ended, ~ended & (self.rng.random(WIDTH) < self.ends))
        return self._steps(self.rows[-count:]), self._steps([self._next], arrival=True)

    def _steps(self, rows: list[dict[str, Any]], arrival: bool = False) -> Trajectory:
        def part(name: str) -> torch.Tensor:
            return rows[0][name] if arrival else torch.stack([row[name] for row in rows])

        action = part("action") * (0 if arrival else 1)  # the last time step has no action yet
        flags = (part(name) for name in ("reward", "terminated", "truncated", "is_first"))
        extras = {} if arrival else {name: part(name) for name in EXTRAS} | {"not kept": part("reward")}
        carry = rows[0]["carry"] if len(rows) == 1 else ()
        return Trajectory({name: part(name) for name in ("state", "rgb")}, action, *flags, extras, carry)

    def begins(self, size: int, length: int, resets: bool) -> set[int]:
        """Numbers of the stored rows where a sequence may start; the time step after its last row must exist."""
        newest = [*self.rows, self._next]
        return {
            row * WIDTH + env
            for row in range(max(0, len(self.rows) - size), len(self.rows) - length + 1)
            for env in range(WIDTH)
            if resets or not newest[row + 1]["is_first"][env]
        }


def make_replay(sampler: Sampler, *, files: Path | None = None, ranks: Any = None, **how: Any) -> Replay:
    buffer = BufferConfig(memmap=files is not None, memmap_dir=files and str(files))
    context = make_context()
    config = dataclasses.replace(context.config, buffer=buffer)
    context = dataclasses.replace(context, config=config, spec=SPEC, ranks=ranks or SingleProcess())
    return Replay(context, sampler, **{"size": 40, "batch_size": 50} | how)


def sample_batches(replay: Replay, count: int) -> list[Any]:
    found = []
    for batch in replay.batches(10**9):
        found.append(batch)
        if len(found) == count:
            break
    return found


def row_numbers(steps: Trajectory) -> torch.Tensor:
    return steps.obs["state"][..., 0].long()


def chi_square(counts: Counter[int], kinds: int) -> float:
    """Chi-square statistic of equal counts, as deviation from its mean in standard deviations."""
    share = counts.total() / kinds
    return (sum((n - share) ** 2 / share for n in counts.values()) - (kinds - 1)) / (2 * (kinds - 1)) ** 0.5


@always
@pytest.mark.parametrize("rollout", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "sampler", [Transitions(), Transitions(3), Sequences(1), Sequences(5)], ids=["1", "n", "rows", "L"]
)
def test_sampler_draws_allowed_starts_uniformly(sampler: Sampler, rollout: int) -> None:
    for seed in range(3):
        oracle, replay = Oracle(seed), make_replay(sampler, batch_size=4_000)
        for total in (1, 2, 3, 4) if rollout > 7 else (2, 30):  # partly filled, and after rows were overwritten
            for _ in range(total):
                replay.extend(*oracle.steps(rollout))
            allowed = oracle.begins(40, sampler.length, resets=isinstance(sampler, Sequences))
            counts: Counter[int] = Counter()
            for batch in sample_batches(replay, 2) if allowed else []:
                counts.update(row_numbers(batch.steps)[0].tolist())
            assert set(counts) == allowed
            assert not allowed or abs(chi_square(counts, len(allowed))) < 6


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
@pytest.mark.parametrize("seed", range(4))
def test_replay_batch_matches_written_rows(seed: int, files: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    length, before = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    oracle = Oracle(seed)
    where = tmp_path if files else None
    replay = make_replay(Sequences(length), files=where, before=before, extras=EXTRAS, carry=CARRY)
    for _ in range(int(rng.integers(length, 130))):
        replay.extend(*oracle.steps(1))
    rows = [*oracle.rows, oracle._next]
    for batch in sample_batches(replay, 3):
        first = row_numbers(batch.steps)[0]
        past = batch.steps.past
        assert set(past) == ({"obs/state", "obs/rgb", "action", "is_first"} if before else set())
        for t in range(-before, 0):
            for i, number in enumerate((first + t * WIDTH).tolist()):
                row, env = rows[max(0, number) // WIDTH], number % WIDTH
                if number < 0:  # before the first row
                    row = {key: torch.zeros_like(value) for key, value in row.items() if key != "carry"}
                assert all(torch.equal(past[f"obs/{key}"][t][i], row[key][env]) for key in ("state", "rgb"))
                assert torch.equal(past["action"][t][i], row["action"][env])
                assert past["is_first"][t][i] == row["is_first"][env]
        for t in range(length + 1):
            part, at = (batch.last, slice(None)) if t == length else (batch.steps, t)
            for i, number in enumerate((first + t * WIDTH).tolist()):
                row, env = rows[number // WIDTH], number % WIDTH
                assert all(torch.equal(part.obs[key][at][i], row[key][env]) for key in ("state", "rgb"))
                assert all(getattr(part, f)[at][i] == row[f][env] for f in ("terminated", "truncated", "is_first"))
                assert part.reward[at][i] == row["reward"][env]
                if t < length:
                    assert torch.equal(part.action[at][i], row["action"][env])
                    assert all(torch.equal(part.extras[key][at][i], row[key][env]) for key in EXTRAS)
                    assert batch.places[t, i] == number
        assert set(batch.steps.extras) == set(EXTRAS)
        h, age = batch.steps.carry["h"]
        assert torch.equal(h, torch.stack([first, first], 1).float()) and torch.equal(age, first[:, None])


def test_replay_fills_missing_extras_and_carry() -> None:
    oracle, replay = Oracle(0), make_replay(Transitions(), extras=EXTRAS, carry=CARRY)
    for _ in range(5):
        steps, last = oracle.steps(1)
        steps.extras, steps.carry, last.carry = {}, (), ()
        replay.extend(steps, last)
    (batch,) = sample_batches(replay, 1)
    assert all((batch.steps.extras[name] == 0).all() for name in EXTRAS)
    assert (batch.steps.carry["h"][0] == -1).all() and batch.steps.carry["h"][1].dtype == torch.int64
    with pytest.raises(ValueError, match="accepts only rollouts of one row"):
        replay.extend(*[dataclasses.replace(part, carry=CARRY) for part in oracle.steps(2)])


@pytest.mark.parametrize("device", ["cpu", "as on a device"])
def test_write_back_skips_overwritten_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device != "cpu":
        monkeypatch.setattr("rlcore.data.replay.make_ring", lambda *args: DeviceRing(*args[:4]))
    oracle, replay = Oracle(3), make_replay(Sequences(4), extras=EXTRAS)
    for _ in range(60):
        replay.extend(*oracle.steps(1))
    (batch,) = sample_batches(replay, 1)
    for _ in range(20):
        replay.extend(*oracle.steps(1))  # rows 0 to 39 are overwritten, 20 to 39 of them since the sample
    latent = torch.arange(4 * 50.0).view(4, 50, 1, 1).expand(4, 50, 2, 2)
    replay.write_back(batch.places, {"latent": latent})
    # Of a row that was sampled twice, the last value counts.
    expected = dict(zip(batch.places.ravel().tolist(), latent[..., 0, 0].ravel().tolist(), strict=True))
    seen = set()
    for other in sample_batches(replay, 40):
        for number, latent, logprob in zip(
            row_numbers(other.steps).ravel().tolist(),
            other.steps.extras["latent"][..., 0, 0].ravel().tolist(),
            other.steps.extras["logprob"].ravel().tolist(),
            strict=True,
        ):
            assert latent == expected.get(number, number + 0.5) and logprob == -number
            seen.add(number)
    assert len(seen & expected.keys()) > 20 and min(seen) == 40 * WIDTH


@always
@pytest.mark.parametrize("fixed", [(), ("logprob",), ("logprob", "latent")])
def test_batch_contains_values_written_back_for_batches_before_it(fixed: tuple[str, ...]) -> None:
    """If all extras are fixed, batches are copied together, and the values of the same copy are the old ones."""
    oracle = Oracle(4)
    replay = make_replay(Sequences(4), batch_size=4, extras=EXTRAS, fixed_extras=fixed)
    for _ in range(40):
        replay.extend(*oracle.steps(1))
    expected: dict[int, float] = {}
    stale = 0
    for k, batch in zip(range(12), replay.batches(10**9), strict=False):
        numbers, latent = row_numbers(batch.steps).ravel().tolist(), batch.steps.extras["latent"][..., 0, 0].ravel()
        stale += sum(old != expected.get(n, n + 0.5) for n, old in zip(numbers, latent.tolist(), strict=True))
        batch.write_back({"latent": torch.full_like(batch.steps.extras["latent"], -k)})
        expected |= dict.fromkeys(numbers, -k)
    assert (stale > 0) == (len(fixed) == 2)


def save_checkpoint(replay: Replay, folder: Path, name: int) -> tuple[Path, set[str]]:
    """Save a checkpoint, and return its path and the names of its new chunks."""
    chunks = folder / "chunks"
    before = {path.name for path in chunks.glob("*")} if chunks.exists() else set()
    path = checkpoint.save(folder, name, {"buffer": replay.state_dict()}, {})
    return path, {path.name for path in chunks.glob("*")} - before


@pytest.mark.parametrize("files", [False, True], ids=["memory", "files"])
def test_replay_resumes_with_same_bits_after_checkpoint(tmp_path: Path, files: bool) -> None:
    def train(replay: Replay, oracle: Oracle, iterations: int) -> list[torch.Tensor]:
        found = []
        for _ in range(iterations):
            before = len(oracle.rows) * WIDTH
            replay.extend(*oracle.steps(1))
            for batch in replay.batches(before):
                found += [batch.steps.obs["rgb"], batch.steps.extras["latent"], batch.last.reward]
                value = batch.steps.extras["latent"] * 0.9 + before
                replay.write_back(batch.places, {"latent": value})
        return found

    def make_buffer() -> Replay:
        how = {"extras": EXTRAS, "carry": CARRY, "before": 2, "ratio": 0.4}
        return make_replay(Sequences(3), files=tmp_path if files else None, batch_size=6, **how)

    straight, other = make_buffer(), Oracle(5)
    wanted = train(straight, other, 170)
    found, oracle, replay = [], Oracle(5), make_buffer()
    for leg in (3, 20, 1, 60, 33, 53):
        found += train(replay, oracle, leg)
        path, _ = save_checkpoint(replay, tmp_path / "checkpoints", len(oracle.rows))
        replay = make_buffer()
        replay.load_state_dict(checkpoint.load(path)[0]["buffer"])
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert nested_state.encode(replay.state_dict()) == nested_state.encode(straight.state_dict())


def test_checkpoint_writes_only_new_or_changed_chunks(tmp_path: Path) -> None:
    oracle, replay = Oracle(1), make_replay(Sequences(3), size=640, extras=EXTRAS)
    assert replay.chunk_rows == 80
    replay.extend(*oracle.steps(163))
    save_checkpoint(replay, tmp_path, 1)
    assert len(save_checkpoint(replay, tmp_path, 2)[1]) == 0
    replay.extend(*oracle.steps(1))
    assert len(save_checkpoint(replay, tmp_path, 3)[1]) == 2  # the newest rows, of both kinds
    replay.extend(*oracle.steps(1))
    assert len(save_checkpoint(replay, tmp_path, 4)[1]) == 4  # a chunk is full
    replay.write_back(np.array([[81 * WIDTH]]), {"latent": torch.zeros(1, 1, 2, 2)})
    path, new = save_checkpoint(replay, tmp_path, 5)
    assert len(new) == 1  # the extras of rows 80 to 159; their environment data is unchanged
    again = make_replay(Sequences(3), size=640, extras=EXTRAS)
    again.load_state_dict(checkpoint.load(path)[0]["buffer"])
    assert len(save_checkpoint(again, tmp_path, 6)[1]) == 0
    again.write_back(np.array([[163 * WIDTH]]), {"latent": torch.ones(1, 1, 2, 2)})
    assert len(save_checkpoint(again, tmp_path, 7)[1]) == 1


def test_memmap_files_are_unnamed_and_preallocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, oracle = make_replay(Transitions(), files=tmp_path / "scratch", size=4_000), Oracle(0)
    replay.extend(*oracle.steps(2))
    assert list(tmp_path.iterdir()) == [tmp_path / "scratch"] and not list((tmp_path / "scratch").iterdir())
    monkeypatch.setattr("os.posix_fallocate", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    full = make_replay(Transitions(), files=tmp_path, size=4_000)
    with pytest.raises(
        DiskFault, match="^buffer.memmap: cannot allocate disk space for the replay buffer .No space left"
    ):
        full.extend(*oracle.steps(2))


@pytest.mark.parametrize("ratio", [0.1, 0.3, 1, 2.5, Fraction(1, 3)])
def test_replay_ratio_is_exact_on_every_rank(ratio: float | Fraction) -> None:
    for size in (1, 2, 3):
        ranks = [dataclasses.make_dataclass("Ranks", ["rank", "size"])(rank, size) for rank in range(size)]
        every = [make_replay(Transitions(), batch_size=2, ratio=ratio, starts=20, ranks=each) for each in ranks]
        oracles, steps = [Oracle(rank) for rank in range(size)], 0
        for _ in range(23):
            counts = []
            for replay, oracle in zip(every, oracles, strict=True):
                replay.extend(*oracle.steps(1))
                counts.append(len(list(replay.batches(steps))))
            steps += WIDTH * size
            assert len(set(counts)) == 1
            owed = int(Fraction(str(ratio)) * max(0, steps - 20))
            assert every[0].taken == owed
            assert every[0].metrics() == {"Params/replay_ratio": owed * size / steps}
        batches = [sample_batches(replay, 1)[0] for replay in every]
        assert all(not np.array_equal(batches[0].places, other.places) for other in batches[1:])


@pytest.mark.parametrize(("extras", "only"), [(None, "none"), (EXTRAS, "latent, logprob")], ids=["none", "others"])
def test_write_back_refuses_unknown_extras(extras: Any, only: str) -> None:
    oracle, replay = Oracle(0), make_replay(Sequences(2), extras=extras)
    replay.extend(*oracle.steps(5))
    (batch,) = sample_batches(replay, 1)
    with pytest.raises(
        ValueError, match=rf"^write_back: z: must be names in the argument `extras` of this replay buffer \({only}\)$"
    ):
        batch.write_back({"z": torch.zeros(batch.places.shape)})


def test_transitions_draw_refuses_only_reset_rows() -> None:
    class Resets:
        oldest, written, width = 0, 3, 2

        def only_resets(self, places: np.ndarray) -> np.ndarray:
            return np.ones(len(places), bool)

    with pytest.raises(RunError, match="no transition can be sampled: all 6 rows"):
        Transitions().draw(Resets(), 4, np.random.default_rng(0))
