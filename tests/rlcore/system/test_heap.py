"""Pages of the C heap that hold nothing go back to the system, and a training does that now and then."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from rlcore.system import heap
from rlcore.train import trainer
from tests.contract.test_registry import small


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_lies_free_below_something_that_is_used_goes_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(10_000) for _ in range(5_000)]
    for block in blocks:
        ctypes.memset(block, 1, 10_000)
    for block in blocks[:-1]:  # without the last, which keeps the heap from ending before them
        libc.free(block)
    before = resident()
    heap.trim()
    after = resident()
    libc.free(blocks[-1])
    assert before - after > 40_000_000


def test_a_training_gives_it_back_after_so_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(trainer, "TRIMMED", 3)
    training = small("a2c", "CartPole-v1")
    monkeypatch.setattr(heap, "trim", lambda: trimmed.append(training.iterations))
    for _ in range(7):
        training.collect()
        training.update()
    training.close()
    assert trimmed == [3, 6]
