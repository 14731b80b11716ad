"""Measurements of the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.memory import PeakMemory, tree_megabytes

BLOCK = 60  # MB
# A process with its own block, two children with one block each, and a fork that shares the block of its parent.
TREE = f"""
import os, subprocess, sys
held = os.urandom({BLOCK} * 2**20)
own = "import os, sys; held = os.urandom({BLOCK} * 2**20); print(flush=True); sys.stdin.read()"
children = [subprocess.Popen([sys.executable, "-c", own], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in "ab"]
for child in children:
    child.stdout.readline()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("all there", flush=True)
sys.stdin.read()
for child in children:
    child.communicate()
"""


@pytest.mark.slow
def test_peak_memory_counts_shared_memory_once() -> None:
    root = subprocess.Popen([sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert root.stdout is not None and root.stdin is not None
    peak = PeakMemory(root.pid)
    root.stdout.readline()
    now = tree_megabytes(root.pid)
    assert 3 * BLOCK < now < 4 * BLOCK
    while peak.megabytes < 3 * BLOCK:
        os.sched_yield()
    root.communicate()
    assert peak.stop() < 4 * BLOCK
    assert tree_megabytes(root.pid) == 0.0
