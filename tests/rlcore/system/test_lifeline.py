"""Processor time of child processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.system.lifeline import children_seconds, spawn
from rlcore.system.training_clock import clock
from rlcore.train.metrics import Stopwatch

WORKER = """
import time

while time.process_time() < 0.5:
    pass
print("worked", flush=True)
input()
"""


def test_stopwatch_counts_running_and_ended_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "works.py").write_text(WORKER)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    watch = Stopwatch()
    with watch.running():
        child = spawn("works", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        while_it_runs = watch.cpu
        child.communicate(b"\n")
    assert while_it_runs >= 0.45  # in ticks of 10 ms
    assert while_it_runs <= watch.cpu < while_it_runs + 1.0
    assert clock()[1] >= children_seconds() >= 0.45
