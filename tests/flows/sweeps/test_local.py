"""Number and environment variables of workers on machines with and without GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.sweeps import local
from flows.sweeps.jobs import End, TrialRun


@contextmanager
def no_trainers(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("workers", "accelerator", "gpus", "expected"),
    [
        (4, "cuda", ["0", "1"], [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        (1, "gpu", ["3", "5"], [{"CUDA_VISIBLE_DEVICES": "3"}]),
        (3, "cpu", ["0", "1"], [{}, {}, {}]),
        (2, "cuda", [], [{}, {}]),  # check_device refuses this earlier
    ],
)
def test_local_executor_gives_each_worker_one_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    accelerator: str,
    gpus: list[str],
    expected: list[dict[str, str]],
) -> None:
    """All workers train at the same time; the test compares the environment variables of their processes."""
    environments: list[dict[str, str]] = []
    together = threading.Barrier(len(expected))

    class Worker:
        lives = True

        def __init__(self, place: dict[str, str], log: Path) -> None:
            self.place = place
            environments.append(place)

        def train(self, *_: Any) -> End:
            together.wait(10)  # all workers train at the same time
            return End("over")

        def end(self, interrupt: bool) -> None: ...

        def wait(self, seconds: float) -> None: ...

    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(local, "warm_trainers", no_trainers)
    monkeypatch.setattr(local, "_Worker", Worker)
    with local.local_executor(workers, accelerator, tmp_path / "log") as executor:
        executor._busy = len(expected) - 1
        assert executor.free
        executor._busy = len(expected)
        assert not executor.free  # at most one trial per GPU
        trainings = [TrialRun(tmp_path / str(number), ()) for number in range(len(expected))]
        threads = [
            threading.Thread(target=executor._crew.train, args=(training, None, lambda facts: None))
            for training in trainings
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(environments, key=str) == sorted(expected, key=str)
