"""Calls of stages in their run's trainer process, which has torch: results, events and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.runs.listeners import emit, subscribe
from flows.runs.trainer import expect_trainer, release, trainer_for
from flows.runs.with_torch import with_torch
from rlcore.errors import DiskFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.train.calls import call, pack, unpack
from tests.runs import prepare

HERE = __name__


class UnpicklableError(Exception):
    """Foreign exception with two required arguments, which cannot be unpickled."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


def pid(run: RunDirectory) -> int:
    emit("stage", {"doing": f"in {run.path.name}"})
    return os.getpid()


def fail(run: RunDirectory, kind: str) -> None:
    raise {"UserError": UserError, "DiskFault": DiskFault, "KeyError": KeyError}[kind]("the reason")


def play(run: RunDirectory, episodes: int, on_progress: Any = None, doubled: bool = False) -> list[int]:
    on_progress(episodes, episodes)
    return [episodes * (2 if doubled else 1)]


def exit_process(run: RunDirectory) -> None:
    os._exit(3)


def test_with_torch_without_trainer_uses_own_process(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    events: list[tuple[str, Any]] = []
    with subscribe(lambda kind, facts: events.append((kind, facts))):
        assert with_torch(run, f"{HERE}.pid") == os.getpid()
        assert with_torch(run, f"{HERE}.play", 3, doing="playing", doubled=True) == [6]
    assert events[1] == ("work", {"doing": "playing", "done": 3, "total": 3, "unit": "episodes"})
    with pytest.raises(DiskFault, match="the reason"):
        with_torch(run, f"{HERE}.fail", "DiskFault")


def test_unpack_restores_packed_exception() -> None:
    both = UserError("a\nb", mistakes=(UserError("a"), UserError("b")))
    restored = unpack(pack(both), "unused")
    assert isinstance(restored, UserError)
    assert str(restored) == "a\nb"
    assert [str(mistake) for mistake in restored.mistakes] == ["a", "b"]
    assert "in the trainer's process" in restored.__notes__[0]
    single = unpack(pack(UserError("one")), "unused")
    assert isinstance(single, UserError)
    assert single.mistakes == (single,)


def test_unpack_replaces_exception_that_cannot_be_pickled() -> None:
    class Local(Exception):
        pass

    messages: list[dict[str, Any]] = []
    for error in (UnpicklableError("a", 1), Local("it failed\nbadly")):
        assert type(unpack(pack(error), "what it was")) is RunError
    call("rlcore.nowhere.at_all", [], lambda event, **fields: messages.append({"event": event, **fields}))
    assert messages[0]["event"] == "failed"
    assert messages[0]["sentence"].startswith("ModuleNotFoundError: No module named 'rlcore.nowhere'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    """Yield a run with an idle trainer."""
    prepared = prepare(tmp_path_factory.mktemp("called") / "run")
    expect_trainer(prepared)
    yield prepared
    release(prepared)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_with_torch_uses_trainer_at_any_time(run: RunDirectory) -> None:
    trainer = expect_trainer(run)
    events: list[tuple[str, Any]] = []
    with subscribe(lambda kind, facts: events.append((kind, facts))):
        assert with_torch(run, f"{HERE}.pid") == trainer.process.pid
    assert events[-1] == ("stage", {"doing": "in run"})  # possibly after a message about a slow start
    for kind, expected in (("UserError", UserError), ("DiskFault", DiskFault), ("KeyError", KeyError)):
        with pytest.raises(expected, match="the reason"):
            with_torch(run, f"{HERE}.fail", kind)
    assert not trainer.ready
    assert trainer_for(run) is trainer
    trainer.advance()
    with pytest.raises(UserError, match="the reason"):
        with_torch(run, f"{HERE}.fail", "UserError")
    assert with_torch(run, f"{HERE}.pid") == trainer.process.pid
    assert "the reason" in run.log.read_text()  # with its traceback


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_with_torch_replaces_trainer_that_died(run: RunDirectory) -> None:
    first = expect_trainer(run)
    with pytest.raises(RunError, match="the trainer ended with code 3"):
        with_torch(run, f"{HERE}.exit_process")
    answering = with_torch(run, f"{HERE}.pid")
    assert answering not in (first.process.pid, os.getpid())
    second = expect_trainer(run).process
    second.kill()
    second.wait(20)
    assert with_torch(run, f"{HERE}.pid") not in (answering, os.getpid())


@pytest.mark.slow
def test_trainer_calls_import_no_orchestration_library() -> None:
    script = (
        "import sys, rlcore.train.server, flows.runs.with_torch, flows.stages.collect, flows.registry.playing;"
        "assert not {'prefect', 'mlflow', 'hydra', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
