"""Speed of our replay buffer, compared with a buffer that has one NumPy array per column, as in other libraries.

python -m benchmarks.replay      # prints a table in CPU microseconds; half a minute, 2 GB
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rlcore.data.replay import Replay
from rlcore.data.samplers import Sampler, Sequences, Transitions
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import SingleProcess, Trajectory

WIDTH, ACTIONS = 4, 6
VECTOR, IMAGE = ArraySpec((17,), "float32"), ArraySpec((64, 64, 3), "uint8")


def best(function: Callable[[], Any], calls: int, repeats: int = 15) -> float:
    """Return the CPU microseconds per call of a function, the minimum over the repeats.

    The minimum is least affected by other programs on the machine.
    """
    function()
    times: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(calls):
            function()
        times.append((time.process_time() - began) / calls * 1e6)
    return min(times)


def steps(obs: ArraySpec, *lead: int) -> Trajectory:
    """Return a trajectory of zeros with shape [*lead, 4 environments]."""
    lead = (*lead, WIDTH)
    no = torch.zeros(lead, dtype=torch.bool)
    state = torch.zeros((*lead, *obs.shape), dtype=getattr(torch, obs.dtype))
    return Trajectory({"state": state}, torch.zeros(*lead, ACTIONS), torch.zeros(lead), no, no, no)


def full(obs: ArraySpec, sampler: Sampler, size: int, batch_size: int) -> Replay:
    """Return a full replay buffer of zeros, in which new rows have already overwritten the oldest ones."""
    box = ActionSpec("Box", (ACTIONS,), "float32", low=(-1.0,) * ACTIONS, high=(1.0,) * ACTIONS)
    spec = EnvSpec("zeros", {"state": obs}, box)
    context: Any = SimpleNamespace(
        fabric=SimpleNamespace(device=torch.device("cpu")),
        ranks=SingleProcess(),
        num_envs=WIDTH,
        spec=spec,
        config=SimpleNamespace(buffer=SimpleNamespace(memmap=False)),
        generator=lambda purpose: np.random.default_rng(0),
    )
    replay, count = Replay(context, sampler, size=size, batch_size=batch_size), size // 100
    rows, last = steps(obs, count), steps(obs)
    for _ in range(102):
        replay.extend(rows, last)
    return replay


def drawing(replay: Replay, count: int) -> Callable[[], None]:
    """Return a function that draws `count` batches from the replay buffer in one call of `Replay.batches`."""

    def draw() -> None:
        replay.taken = 10**6 + WIDTH * replay.size // 100 - count  # so that `count` batches are due
        assert sum(1 for _ in replay.batches(10**6)) == count

    return draw


class Arrays:
    """Reference buffer: NumPy arrays [rows, environments, ...] of obs, next obs, action, reward and done."""

    def __init__(self, rows: int) -> None:
        shapes = [(rows, WIDTH, *VECTOR.shape)] * 2 + [(rows, WIDTH, ACTIONS), (rows, WIDTH), (rows, WIDTH)]
        self.columns = [np.ones(shape, np.float32) for shape in shapes]
        self.rng, self.rows = np.random.default_rng(0), rows
        self.new = [np.zeros(column.shape[1:], np.float32) for column in self.columns]

    def draw(self) -> list[torch.Tensor]:
        """Draw a batch of 256 transitions."""
        row, env = self.rng.integers(0, self.rows, 256), self.rng.integers(0, WIDTH, 256)
        return [torch.as_tensor(column[row, env]) for column in self.columns]

    def write(self) -> None:
        """Write one transition of every environment."""
        for column, value in zip(self.columns, self.new, strict=True):
            column[5] = np.array(value)


def figures() -> Iterator[tuple[str, float, float]]:
    """Yield (operation, CPU microseconds with our replay buffer, CPU microseconds with plain NumPy arrays)."""
    arrays, replay = Arrays(250_000), full(VECTOR, Transitions(), 250_000, 256)
    taken = best(arrays.draw, 100)
    for count in (1, 4, 16):
        name = f"draw 256 of 1 M transitions of 17 numbers, {count} batches at once"
        yield name, best(drawing(replay, count), 160 // count) / count, taken
    row, last = steps(VECTOR, 1), steps(VECTOR)
    yield "write a row of 4 environments", best(lambda: replay.extend(row, last), 300), best(arrays.write, 300)
    images = full(IMAGE, Sequences(64), 4_000, 16)
    frames, index = np.ones((16_000, 64 * 64 * 3), np.uint8), np.random.default_rng(0).integers(0, 16_000, 16 * 65)
    name = "draw 16 sequences of 65 images, 64 x 64 x 3"
    yield name, best(drawing(images, 4), 2) / 4, best(lambda: frames.take(index, 0), 8)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| | ours, µs | NumPy arrays, µs | ratio |\n|---|---|---|---|")
    for name, ours, theirs in figures():
        print(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
