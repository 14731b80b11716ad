"""Lock files: a process that waits logs which processes use the lock file."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from flows.process import locks
from flows.process.locks import hold, is_taken
from rlcore.errors import UserError


def test_hold_logs_holder_while_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SILENT", 0.0)
    monkeypatch.setattr(locks, "_holders", lambda path: [(7, "train seed=0"), (8, "train seed=1")])
    held, free = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with hold(tmp_path / "lock", waiting="registers a model"):
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold_lock)
    holder.start()
    assert held.wait(60)

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.set()  # logged while waiting, not afterwards

    handler = Freeing()
    locks.log.addHandler(handler)
    try:
        with hold(tmp_path / "lock", waiting="registers a model"):
            assert caplog.messages == ["another process registers a model; waiting for it (pid 7, pid 8)"]
    finally:
        locks.log.removeHandler(handler)
        free.set()
        holder.join()


def test_hold_refusal_names_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_holders", lambda path: [(7, "train seed=0")])
    monkeypatch.setattr(locks, "_get", lambda handle, way: False)
    message = r"^another process is running sweep x; wait until it ends \(pid 7 \(train seed=0\)\)$"
    with pytest.raises(UserError, match=message):
        hold(tmp_path / "lock", refusal="is running sweep x; wait until it ends").__enter__()


def test_hold_logs_nothing_if_lock_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hold(tmp_path / "lock", waiting="registers a model"):
        assert caplog.messages == []


def test_hold_names_lock_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("missing/file")
    for name in ("folder", "link"):
        assert not is_taken(tmp_path / name)
        with pytest.raises(UserError, match=rf"/{name}: this lock file cannot be opened .*; remove it$"):
            hold(tmp_path / name).__enter__()
