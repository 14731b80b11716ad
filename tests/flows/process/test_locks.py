"""Lock files: who waits long is told for whom."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
from pathlib import Path

import pytest

from flows.process import locks
from flows.process.locks import hold


def test_who_waits_is_told_for_whom_and_gets_it_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SILENT", 0.0)
    monkeypatch.setattr(locks, "_holders", lambda path: [f"pid {os.getpid()} ({shlex.join(sys.argv[:1])})"])
    held, free = threading.Event(), threading.Event()

    def hold_it() -> None:
        with hold(tmp_path / "lock", waiting="registers a model"):
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold_it)
    holder.start()
    assert held.wait(60)

    class Freeing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.set()  # it is said while one waits, not afterwards

    handler = Freeing()
    locks.log.addHandler(handler)
    try:
        with hold(tmp_path / "lock", waiting="registers a model"):
            assert caplog.messages == [f"pid {os.getpid()} ({sys.argv[0]}) registers a model; waiting for it"]
    finally:
        locks.log.removeHandler(handler)
        free.set()
        holder.join()


def test_nothing_is_said_where_nobody_holds_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hold(tmp_path / "lock", waiting="registers a model"):
        assert caplog.messages == []
