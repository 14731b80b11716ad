"""`heap.trim` returns free pages of the C heap to the system; training calls it regularly."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from rlcore.system import heap
from rlcore.train import loop
from tests.contract.test_registry import small


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_heap_trim_returns_free_pages_to_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(10_000) for _ in range(5_000)]
    for block in blocks:
        ctypes.memset(block, 1, 10_000)
    for block in blocks[:-1]:  # the last block keeps the heap from shrinking by itself
        libc.free(block)
    before = resident()
    heap.trim()
    after = resident()
    libc.free(blocks[-1])
    assert before - after > 40_000_000


def test_trainer_trims_heap_every_trimmed_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(loop, "TRIMMED", 3)
    training = small("a2c", "CartPole-v1")
    monkeypatch.setattr(heap, "trim", lambda: trimmed.append(training.iterations))
    for _ in range(7):
        training.collect()
        training.update()
    training.close()
    assert trimmed == [3, 6]
