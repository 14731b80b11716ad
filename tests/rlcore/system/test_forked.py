"""Children that are forked from the current process: inheritance, signals and exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from rlcore.system.lifeline import alive
from tests.retries import wait_for

PARENT = """
import os, signal, subprocess, sys, threading
from rlcore.system.forked import fork_here

def run():
    here = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
    print(os.getpid(), os.getsid(0), open("/proc/self/comm").read().strip(), kept in here, lock in here, flush=True)
    print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, flush=True)
    if sys.stdin.readline().startswith("fail"):
        raise ValueError("so it is")

lock, kept = os.pipe()
signal.signal(signal.SIGTERM, lambda *args: None)
def start():
    return fork_here("named", run, keep=[kept], stderr=2)
"""


def start_parent(script: str) -> subprocess.Popen[str]:
    """Start a process with function `start` and without threads, which pytest may have."""
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_fork_here_keeps_only_listed_file_descriptors() -> None:
    output, _ = start_parent(
        "child = start(); print(child.pid, child.stdout.readline().decode(), end='')"
    ).communicate()
    pid, itself, session, name, kept, lock = output.split()
    assert pid == itself == session
    assert (name, kept, lock) == ("named", "True", "False")


def test_fork_here_child_ignores_sigterm() -> None:
    output, _ = start_parent(
        "child = start(); child.stdout.readline(); print(child.stdout.readline().decode())"
    ).communicate()
    assert output.strip() == "True"


def test_fork_here_child_returns_exit_code() -> None:
    script = (
        "codes = []\n"
        "for word in (b'well\\n', b'fail\\n'):\n"
        "    child = start(); child.stdin.write(word); child.stdin.flush(); codes.append(child.wait(60))\n"
        "child = start(); child.stdout.readline(); child.kill(); codes.append(child.wait(60)); print(codes)\n"
    )
    output, errors = start_parent(script).communicate()
    assert output.strip() == "[0, 1, -9]"
    assert "ValueError: so it is" in errors


def test_wait_times_out_beside_waiting_thread() -> None:
    script = (
        "child = start(); child.stdout.readline()\n"
        "waiting = threading.Thread(target=child.wait); waiting.start()\n"
        "try: child.wait(0.1)\n"
        "except subprocess.TimeoutExpired: print('gave up')\n"
        "child.kill(); waiting.join(); print(child.wait())\n"
    )
    assert start_parent(script).communicate(timeout=60)[0].split("\n")[:2] == ["gave up", "-9"]


def test_fork_here_child_ends_with_parent() -> None:
    with start_parent("child = start(); print(child.pid, flush=True); signal.pause()") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert alive(child)
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not alive(child), "the end of the child")


def test_fork_here_refuses_process_with_threads() -> None:
    script = "threading.Thread(target=threading.Event().wait, daemon=True).start(); print(start())"
    assert start_parent(script).communicate()[0].strip() == "None"
