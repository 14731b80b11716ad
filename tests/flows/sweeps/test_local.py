"""How many workers there are, and what each is started with, on machines with GPUs and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.sweeps import crew, local
from flows.sweeps.jobs import End
from flows.sweeps.trial import TrialRun


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("workers", "accelerator", "gpus", "wanted"),
    [
        (4, "cuda", ["0", "1"], [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        (1, "gpu", ["3", "5"], [{"CUDA_VISIBLE_DEVICES": "3"}]),
        (3, "cpu", ["0", "1"], [{}, {}, {}]),
        (2, "cuda", [], [{}, {}]),  # refused before by check_device
    ],
)
def test_local_executor_gives_each_worker_one_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    accelerator: str,
    gpus: list[str],
    wanted: list[dict[str, str]],
) -> None:
    """Trials are trained on all of them at once; the environments that the workers' processes had are compared."""
    given: list[dict[str, str]] = []
    together = threading.Barrier(len(wanted))

    class Worker:
        lives = True

        def __init__(self, place: dict[str, str], log: Path) -> None:
            self.place = place
            given.append(place)

        def train(self, *_: Any) -> End:
            together.wait(10)  # so many at once
            return End("over")

        def end(self, interrupt: bool) -> None: ...

        def wait(self, seconds: float) -> None: ...

    monkeypatch.setattr(local, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(local, "warm_trainers", nothing)
    monkeypatch.setattr(crew, "_Worker", Worker)
    with local.local_executor(workers, accelerator, tmp_path / "log") as hands:
        hands._busy = len(wanted) - 1
        assert hands.free
        hands._busy = len(wanted)
        assert not hands.free  # no trial more than there are GPUs
        trainings = [TrialRun(tmp_path / str(number), ()) for number in range(len(wanted))]
        threads = [
            threading.Thread(target=hands._crew.train, args=(one, None, lambda facts: None)) for one in trainings
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(given, key=str) == sorted(wanted, key=str)
